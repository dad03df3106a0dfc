# control.sh FUZZ_REPLAY: checks the replay program. It must find each fault of the reader "planted" and report the
# fault with the right message. It must find none in valid inputs.
set -u
ulimit -c 0
replay=$1
inputs=$(mktemp -d)
trap 'rm -rf "$inputs"' EXIT
failed=0
expect() { # expect STATUS TEXT INPUT [OPTIONS]: STATUS 0, or 1 for any other
  printf '%s' "$3" > "$inputs/input"
  output=$("$replay" ${4:-} planted "$inputs/input" 2>&1)
  status=$?
  [ "$status" = 0 ] || status=1
  case $output in *"$2"*) said=1 ;; *) said=0 ;; esac
  if [ "$status" != "$1" ] || [ "$said" = 0 ]; then
    printf 'planted "%s": status %s, expected %s and "%s":\n%s\n' "$3" "$status" "$1" "$2" "$output"
    failed=1
  fi
}
expect 0 'planted: 1 inputs' 'good'
expect 0 'planted: 1 inputs' 'no'
expect 1 'finding: another error than the documented one' 'undocumented'
expect 1 "finding: an exception that is none of lockstep's" 'foreign'
expect 1 'finding: a property that does not hold' 'wrong'
expect 1 'finding: took 0.' 'slow...' '--seconds 0.2'
expect 1 'MB, expected at most 300' 'large' '--megabytes 300'
exit $failed
