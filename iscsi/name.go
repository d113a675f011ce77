package iscsi

// A Name is an iSCSI node name: iqn., eui. or naa. form (RFC 7143, 4.2.7).
type Name string

// ParseName checks and normalises (lower case) a name. Errors say which rule is broken.
func ParseName(s string) (Name, error) { panic("not written") }
