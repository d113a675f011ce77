// Package gotgt lets backing-store plug-ins of github.com/gostor/gotgt hold blocks, and keeps their faults to
// themselves. A plug-in says how long it is and is not asked again; a read that is not as long as it should be is an
// error, and so is a panic, after which the plug-in is asked nothing more; it never gets hold of a caller's buffer, for it
// might keep it. What cannot be contained: a plug-in that never comes back holds one worker, and its memory is this
// process's own.
//
// It is not a backstore.Store: package backstore makes one of it (type gotgt).
//
//	d, err := gotgt.Open("file", "/srv/a.img", 0)
//	err = d.ReadAt(bufs, 4096)
package gotgt
