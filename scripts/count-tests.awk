# Counts single tests in the JUnit file of ctest. Prints one line for every skipped test with its reason, and as the last line
# "N passed, N failed, N skipped".
#   awk -f count-tests.awk junit.xml
# A GoogleTest program counts with its own numbers (under mpirun all ranks report the same tests: the largest number
# counts); a program that died counts as one more failure. Other entries of ctest count as one test.
function number(line, word,    text) {
  if (!match(line, "\\[ +" word " +\\] [0-9]+ tests?")) return 0
  text = substr(line, RSTART, RLENGTH)
  sub(/^[^]]*\] /, "", text)
  return text + 0
}
function most(a, b) { return a > b ? a : b }

/^\t<testcase name=/ {
  name = $0
  sub(/^\t<testcase name="/, "", name)
  sub(/".*/, "", name)
  status = $0
  sub(/.* status="/, "", status)
  sub(/".*/, "", status)
  p = f = s = 0
  why = first = ""
  in_output = 0
}
/^\t\t<skipped message=/ {
  why = $0
  sub(/^\t\t<skipped message="/, "", why)
  sub(/"\/>$/, "", why)
}
# The first line of the entry's own output.
/^\t\t<system-out>/ { in_output = 1 }
in_output && first == "" {
  first = $0
  sub(/^\t\t<system-out>/, "", first)
  sub(/<\/system-out>$/, "", first)
}
/<\/system-out>/ { in_output = 0 }
{
  p = most(p, number($0, "PASSED"))
  f = most(f, number($0, "FAILED"))
  s = most(s, number($0, "SKIPPED"))
  if (after_skip && $0 !~ /^\[/) reason = reason == "" ? $0 : reason
  if ($0 ~ /: Skipped$/) { after_skip = 1; reason = "" }
  if ($0 ~ /\[ +SKIPPED +\] .* \([0-9]+ ms\)/) {
    test = $0
    sub(/^.*\[ +SKIPPED +\] /, "", test)
    sub(/ \([0-9]+ ms\).*/, "", test)
    if (!((name, test) in told)) print "skipped: " name ": " test (reason == "" ? "" : ": " reason)
    told[name, test] = 1
    after_skip = 0
    reason = ""
  }
}
/^\t<\/testcase>/ {
  if (status == "run") {
    if (p + s == 0) p = 1
    passed += p
    skipped += s
  } else if (status == "disabled" || (status == "notrun" && why ~ /^SKIP_/)) {
    skipped += 1
    print "skipped: " name (first == "" ? "" : ": " first)
  } else {
    passed += p
    failed += most(f, 1)
    skipped += s
  }
  status = ""
}
END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }
