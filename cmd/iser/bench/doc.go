// Package bench measures a disk: it keeps reads and writes under way for a time and tells how many ended, and how long
// each took. It is a closed loop: a new request starts when an old one has ended, so that a disk that stands still is
// asked for less. It knows nothing of networks, flags or terminals, and of a disk only a Queue.
//
//	r, err := bench.New([]bench.Disk{{SizeBytes: size, BlockSize: 512, MaxTransfer: 1 << 20, Open: open}}, plan)
//	defer r.Close()
//	turn, err := r.Turn(ctx)
//	fmt.Println(turn.Sides[bench.Read].IOs, turn.Elapsed)
package bench
