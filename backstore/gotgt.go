package backstore

func gotgtType() Type {
	return Type{
		Name: "gotgt", Summary: "a backing-store plug-in of gotgt; slower than ours, which file and null have", open: openGotgt,
		Options: []Option{
			{Name: "plugin", Required: true, Summary: "its name: file, null, RemBs, or ceph-rbd if built with -tags ceph", check: notEmpty},
			{Name: "path", Summary: "what the plug-in opens"},
			{Name: "size", Summary: "bytes: required for null; of others it must be what they say", check: storeSize},
		},
	}
}
