// Package lab replays the known hazards of storage over RDMA: scenarios, each drawn from a seed, on the real engines and
// the real RoCE provider over a simulated link, in virtual time. Each has negative controls: the same run with the
// rule that protects broken on purpose, which the checkers must notice. The breaking is done here, by what stands between
// the parts (layers, links, stores, datamovers); nothing in the parts knows of it.
//
// See docs/LAB.md.
package lab
