#!/bin/bash
# Run libiscsi's conformance suite (iscsi-test-cu, Debian's libiscsi-bin) against a LUN, suite by suite. THE LUN'S
# DATA IS OVERWRITTEN.
#
#   suites.sh OUT URL[,URL2] [SUITE...]
#     OUT    gets results.tsv (suite, test, pass|fail|skip|timeout|crash, what a skip says) and a log a run
#     URL    iscsi://HOST[:PORT]/IQN/LUN or iser://...; URL2 is a second path to the same LUN
#     SUITE  as `iscsi-test-cu -l` lists them without "ALL."; default: all
#   SUITE_TIMEOUT=60   seconds a run
#   SUITE_TRIES=1      how often a suite is run until all its tests have a verdict
#   BY_TEST=yes        whether tests that have none then are run one by one
#
# A run that the client does not survive costs the rest of its suite, hence the last two.
# The exit status says nothing of the verdicts.
set -u
out=$1 urls=${2/,/ }
shift 2
: "${SUITE_TIMEOUT:=60}" "${SUITE_TRIES:=1}" "${BY_TEST:=yes}"
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

# missing SUITE VERDICTS: the suite's tests that have none, or one of a client that did not survive
missing() {
	awk -F'[.\t]' -v s="$1" '
		NR == FNR { if ($3 != "crash" && $3 != "timeout") said[$2] = 1; next }
		$1 == "ALL" && $2 == s && NF == 3 && !($3 in said) { print $3 }
	' <(cat <<< "$2") <(cat <<< "$list")
}

for s; do
	for ((try = 0; try < SUITE_TRIES; try++)); do
		verdicts=$(run "$s")
		[ -n "$(missing "$s" "$verdicts")" ] || break
	done
	for t in $(missing "$s" "$verdicts"); do
		v=
		[[ $'\n'$verdicts == *$'\n'$s$'\t'$t$'\t'* ]] || [ "$BY_TEST" != yes ] || v=$(run "$s.$t")
		[[ $'\n'$verdicts == *$'\n'$s$'\t'$t$'\t'* ]] || verdicts+=$'\n'${v:-$s$'\t'$t$'\t'crash}
	done
	sed '/^$/d' <<< "$verdicts" >> "$out/results.tsv"
done
