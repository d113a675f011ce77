package lab

// Scenarios are all there are, in the order in which they are best read.
func Scenarios() []*Scenario {
	return []*Scenario{
		writeThenSend(), lostSendAck(), inlineKey(), foreignInvalidate(), abortRace(), lateWrite(), twoInitiators(), duplicateRead(),
		staleSession(), tornWrite(), misplaced(), staleRead(), bitFlip(),
	}
}
