// Package dial opens disks by URL, over TCP and over iSER: it is the one package that knows the initiator and all of
// its transports. Who wants one transport only, or one of their own, needs package initiator alone.
//
//	d, err := dial.Dial(ctx, "iser://10.0.0.1/iqn.2026-01.com.example:disk/0")
//
// URLs are those of libiscsi (ParseURL). Of RDMA providers, verbs is taken where the address lies on an RDMA device,
// and else roce, which is in this process and needs no device; ?rdma=verbs and ?rdma=roce ask for one.
package dial
