# The report of run.sh: awk -v passes="ours-plain ..." -f report.awk docs/CONFORMANCE.md LIST all.tsv
#
# The tables of CONFORMANCE.md have a row "| SUITE.TEST | ..." for each test that may be skipped (heading "Skipped") or
# may fail (heading "Wrong tests"); LIST is `iscsi-test-cu -l`; all.tsv has pass, suite, test, verdict, what a skip says.

BEGIN { FS = "\t"; n = split(passes, pass, " "); if (only != "") { m = split(only, o, " "); for (i = 1; i <= m; i++) wanted[o[i]] } }

FNR == 1 { file++ }
file == 1 && /^## / { heading = $0 }
file == 1 && /^\| [A-Za-z0-9]+\.[A-Za-z0-9_-]+ \|/ {
	split($0, cell, " *\\| *")
	if (heading ~ /Skipped/) skippable[cell[2]] = cell[3]
	if (heading ~ /Wrong/) wrong[cell[2]] = 1
}
file == 2 && /^ALL\./ {
	k = split($0, part, ".")
	if (only != "" && !(part[2] in wanted)) next
	if (k == 2) suites[++nsuites] = part[2]
	if (k == 3) tests[++ntests] = part[2] "." part[3]
}
file == 3 {
	t = $2 "." $3
	verdict[$1, t] = $4
	why[$1, t] = $5
	kind = ($4 == "pass" || $4 == "skip") ? $4 : "fail" # a crash and a hang are failures
	count[$1, $2, kind]++
	total[$1, kind]++
}

function cells(p, s) { return sprintf("%d/%d/%d", count[p, s, "pass"], count[p, s, "fail"], count[p, s, "skip"]) }

function said(p, t) { return (p, t) in verdict ? verdict[p, t] : "" } # in run p of test t; nothing if it was not run

# ours is the verdict over all our LUNs: a failure anywhere is one; a skip is one only if no LUN ran the test.
function ours(t, i, v, r) {
	r = "missing"
	for (i = 1; i <= n; i++) {
		v = said(pass[i], t)
		if (pass[i] !~ /^ours/ || v == "") continue
		if (v != "pass" && v != "skip") return v
		if (v == "pass" || r == "missing") r = v
	}
	return r
}

END {
	printf "%-24s", "passed/failed/skipped"
	for (i = 1; i <= n; i++) printf "%15s", pass[i]
	print ""
	for (j = 1; j <= nsuites; j++) {
		printf "%-24s", suites[j]
		for (i = 1; i <= n; i++) printf "%15s", cells(pass[i], suites[j])
		print ""
	}
	printf "%-24s", "all"
	for (i = 1; i <= n; i++) printf "%15s", sprintf("%d/%d/%d", total[pass[i], "pass"], total[pass[i], "fail"], total[pass[i], "skip"])
	print "\n"

	for (i = 1; i <= n; i++) if (pass[i] ~ /^stgt/) for (j = 1; j <= ntests; j++) {
		v = said(pass[i], tests[j])
		if (v != "" && v != "pass" && v != "skip") print pass[i] ": " v " " tests[j]
	}

	print "\nSkipped by us:"
	for (j = 1; j <= ntests; j++) {
		t = tests[j]
		for (i = 1; i <= n; i++) {
			if (pass[i] !~ /^ours/ || said(pass[i], t) != "skip") continue
			reason = ours(t) == "skip" ? skippable[t] : "passes on another LUN"
			print "  " pass[i] " " t ": " why[pass[i], t] " - " (reason == "" ? "NO REASON" : reason)
		}
	}
	print ""

	bad = 0
	for (j = 1; j <= ntests; j++) {
		t = tests[j]
		v = ours(t)
		sum[v]++
		if (v == "pass") { if (t in skippable || t in wrong) { bad++; print "FAIL " t ": passes, so it does not belong in docs/CONFORMANCE.md" } }
		else if (v == "skip") { if (!(t in skippable)) { bad++; print "FAIL " t ": skipped, and docs/CONFORMANCE.md gives no reason" } }
		else if (v == "fail" && t in wrong) { excused++; print "The test is wrong (docs/CONFORMANCE.md): " t }
		else { bad++; print "FAIL " t ": " v }
	}
	printf "ours: %d tests, %d passed, %d failed, %d skipped, %d wrong", ntests, sum["pass"],
		ntests - sum["pass"] - sum["skip"] - excused, sum["skip"], excused
	for (i = 1; i <= n; i++) if (pass[i] ~ /^stgt/) printf "; %s: %d passed, %d failed, %d skipped", pass[i], total[pass[i], "pass"],
		total[pass[i], "fail"], total[pass[i], "skip"]
	print (bad ? "\nFAIL" : "\nPASS")
	exit bad > 0
}
