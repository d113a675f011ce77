#!/bin/bash
# Run libiscsi's conformance suite (iscsi-test-cu, Debian's libiscsi-bin) against a LUN, suite by suite. THE LUN'S
# DATA IS OVERWRITTEN.
#
#   suites.sh OUT URL[,URL2] [SUITE...]
#     OUT    gets results.tsv (suite, test, pass|fail|skip|timeout|crash, what a skip says) and a log a run
#     URL    iscsi://HOST[:PORT]/IQN/LUN or iser://...; URL2 is a second path to the same LUN
#     SUITE  as `iscsi-test-cu -l` lists them without "ALL."; default: all
#   SUITE_TIMEOUT=60   seconds a run
#
# A run that the client does not survive costs the rest of its suite, so the tests after it are then run one by one.
# The exit status says nothing of the verdicts.
set -u
out=$1 urls=${2/,/ }
shift 2
: "${SUITE_TIMEOUT:=60}"
mkdir -p "$out"
: > "$out/results.tsv"
list=$(iscsi-test-cu -l) || exit 2
[ $# -gt 0 ] || set -- $(awk -F. '$1 == "ALL" && NF == 2 { print $2 }' <<< "$list")

# run NAME: a suite or SUITE.TEST; prints its verdicts. 124 is timeout's status, and more than 128 a signal's.
run() {
	local log=$out/$1.log rc=0 end=crash
	timeout -k 2 "$SUITE_TIMEOUT" iscsi-test-cu --dataloss --allow-sanitize --verbose -t "ALL.$1" $urls > "$log" 2>&1 < /dev/null || rc=$?
	[ $rc -ne 124 ] || end=timeout
	# A verdict stands at the start of a line or right behind "...". What follows it on its line belongs to the cleaning
	# up after the test.
	awk -v s="${1%%.*}" -v end=$end '
		function verdict(v) { if (open) print s "\t" name "\t" v "\t" (v == "skip" ? why : ""); open = 0 }
		/^  Test: / { verdict("crash"); name = $2; why = ""; open = 1 }
		{
			line = $0
			sub(/^  Test: [^ ]+ \.\.\./, "", line)
			if (line ~ /^passed/) verdict(why == "" ? "pass" : "skip")
			if (line ~ /^FAILED/) verdict("fail")
			if (why == "" && match(line, /\[SKIPPED\] */)) why = substr(line, RSTART + RLENGTH)
		}
		END { verdict(end) }
	' "$log"
}

for s; do
	verdicts=$(run "$s")
	# Tests of the suite without a verdict, and no verdict that could be wrong because the login was refused.
	for t in $(awk -F. -v s="$s" '$1 == "ALL" && $2 == s && NF == 3 { print $3 }' <<< "$list"); do
		[[ $'\n'$verdicts != *$'\n'$s$'\t'$t$'\t'* ]] || continue
		v=$(run "$s.$t")
		verdicts+=$'\n'${v:-$s$'\t'$t$'\t'crash}
	done
	sed '/^$/d' <<< "$verdicts" >> "$out/results.tsv"
done
