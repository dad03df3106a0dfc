#!/usr/bin/env bash
# Checks the machine code of the CUDA kernels, without a GPU:
# - No kernel may spill registers.
# - The bandwidth-bound kernels that kernels/cuda/wide_access.txt lists must load and store 16 bytes at a time.
#   Exception: kernels whose last template argument is 1 take single elements, for addresses that are no multiple of 16.
# - Some kernels of this list must also have several loads in flight. This check needs nvdisasm, which is also in the
#   Python package nvidia-cuda-nvdisasm. Without nvdisasm the check is skipped.
# - From sm_90 on, every kernel must call gpu::wait_for_earlier() before it accesses memory. This function waits for the
#   kernel that was launched before.
#   scripts/check-kernels.sh [ARCHITECTURE]      default sm_90; prints a table, and as its last line "N passed, N failed,
#                                                N skipped", counted in kernels; exit status 1 when a check fails
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$repository"
architecture=${1:-sm_90}
command -v nvcc > /dev/null || die "check-kernels.sh: needs nvcc"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/include/lockstep"
for floor in runtime kernels; do ln -s "$repository/$floor" "$work/include/lockstep/$floor"; done

compile() {  # compile FILE.cu: makes its PTX, its cubin and ptxas's output, without host code
  local name
  name=$(basename "$1" .cu)
  {
    nvcc -std=c++20 -O3 -arch="$architecture" -I "$work/include" -ptx "$1" -o "$work/$name.ptx" &&
      ptxas -v -arch="$architecture" "$work/$name.ptx" -o "$work/$name.cubin"
  } > "$work/$name.log" 2>&1 || { cat "$work/$name.log" >&2; return 1; }
}
export -f compile
export work architecture
printf '%s\n' kernels/cuda/*.cu | xargs -P "$(build_jobs)" -I {} bash -c 'compile {}' || die "check-kernels.sh: a kernel does not compile"

# Writes a control for the last column of the table below: kernels that access memory before they wait. The script must
# report these kernels.
printf 'ptxas info    : Compiling entry function \047%s\047 for\n' first second third > "$work/control.log"
printf '%s\n' '.visible .entry first(' '@!%p1 ld.v4.f32 {%f1}, [%rd1];' 'ld.param.u64 %rd1, [a];' 'griddepcontrol.wait;' 'st.global.u32 [%rd1], 1;' \
  '.visible .entry second(' 'atom.global.add.u32 %r1, [%rd1], 1;' '.visible .entry third(' 'ld.shared.u32 %r1, [a];' 'griddepcontrol.wait;' \
  'red.global.add.u32 [%rd1], 1;' > "$work/control.ptx"
# Makes one line per kernel: op, name, registers, bytes spilled, 16-byte loads, 16-byte stores, memory accesses before the
# kernel waits ("all" if it never waits).
for log in "$work"/*.log; do
  name=$(basename "$log" .log)
  awk -v op="$name" '
    FNR == 1 { part++ }
    part == 1 && /Compiling entry function/ { split($0, quoted, "\047"); entry = quoted[2]; spill[entry] = 0 }
    part == 1 && /spill stores/ { for (i = 1; i < NF; ++i) if ($(i + 2) == "spill") spill[entry] += $i }
    part == 1 && /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); registers[entry] = substr($0, RSTART + 5, RLENGTH - 5) }
    part == 2 && /\.entry / { match($0, /\.entry [A-Za-z0-9_$]+/); entry = substr($0, RSTART + 7, RLENGTH - 7) }
    part == 2 && /griddepcontrol\.wait/ { waits[entry] = 1 }
    part == 2 && !waits[entry] && /^[ \t]*(@!?%p[0-9]+[ \t]+)?(ld|st|atom|red|cp|prefetch)\./ && !/\.(param|shared|local|const)/ { early[entry]++ }
    part == 2 && /ld\.global(\.nc)?(\.[A-Za-z0-9:_]+)*\.v(4\.[a-z]*32|2\.[a-z]*64)/ { loads[entry]++ }
    part == 2 && /st\.global(\.[A-Za-z0-9:_]+)*\.v(4\.[a-z]*32|2\.[a-z]*64)/ { stores[entry]++ }
    END {
      for (e in spill) print op, e, registers[e] + 0, spill[e], loads[e] + 0, stores[e] + 0, waits[e] ? early[e] + 0 : "all"
    }
  ' "$log" "$work/$name.ptx"
done | sort > "$work/table"
[ "$(awk '$1 == "control" {printf "%s %s, ", $2, $7}' "$work/table")" = "first 1, second all, third 0, " ] ||
  die "check-kernels.sh: the control's early accesses are not seen"
sed -i '/^control /d' "$work/table"
# For the ops with a fourth column in wide_access.txt: makes one line per kernel with its name and the largest number of
# loads in flight.
disassembler=$(command -v nvdisasm || true)
: > "$work/flight"
if [ -n "$disassembler" ]; then
  awk '!/^#/ && NF == 4 && $4 ~ /^[0-9]+$/ {print $1}' kernels/cuda/wide_access.txt | sort -u | while read -r op; do
    "$disassembler" -c "$work/$op.cubin" | python3 scripts/loads_in_flight.py
  done > "$work/flight"
fi
c++filt < "$work/table" > /dev/null 2>&1 || die "check-kernels.sh: needs c++filt (binutils)"

kernels=0 failures=0 skipped=0 amiss=
complain() {
  echo "check-kernels.sh: error: $*" >&2
  if [ "$amiss" != "$kernels" ]; then failures=$((failures + 1)) amiss=$kernels; fi
}
printf '%-22s %9s %7s %9s %9s  %s\n' op registers spilled 16B-loads 16B-stores kernel
while read -r op entry registers spilled loads stores early; do
  kernels=$((kernels + 1))
  kernel=$(c++filt "$entry" | sed -E 's/\(anonymous namespace\):://g; s/lockstep::(ops::backend|gpu):://g; s/^void //; s/\([A-Za-z0-9_:]+\)([0-9]+)/\1/g; s/\(.*//')
  printf '%-22s %9s %7s %9s %9s  %s\n' "$op" "$registers" "$spilled" "$loads" "$stores" "$kernel"
  [ "$spilled" = 0 ] || complain "$op: $kernel spills $spilled bytes"
  [ "$early" = 0 ] || [ "${architecture//[!0-9]/}" -lt 90 ] || complain "$op: $kernel touches memory before it waits for the kernel before it ($early)"
  wanted=$(awk -v op="$op" -v kernel="$kernel" '!/^#/ && NF && $1 == op && kernel ~ ("^" $2 "(<|$)") {print $3; exit}' \
    kernels/cuda/wide_access.txt)
  case "$wanted" in
    both | loads | stores) case "$kernel" in *", 1>") continue ;; esac ;;&
    both) { [ "$loads" != 0 ] && [ "$stores" != 0 ]; } || complain "$op: $kernel has no 16-byte loads or no 16-byte stores" ;;
    loads) [ "$loads" != 0 ] || complain "$op: $kernel has no 16-byte loads" ;;
    stores) [ "$stores" != 0 ] || complain "$op: $kernel has no 16-byte stores" ;;
    narrow) ;;
    *) complain "$op: $kernel is not in kernels/cuda/wide_access.txt" ;;
  esac
  least=$(awk -v op="$op" -v kernel="$kernel" '!/^#/ && NF == 4 && $4 ~ /^[0-9]+$/ && $1 == op && kernel ~ ("^" $2 "(<|$)") {print $4; exit}' \
    kernels/cuda/wide_access.txt)
  if [ -n "$least" ] && [ -n "$disassembler" ]; then
    flight=$(awk -v entry="$entry" '$1 == entry {print $2}' "$work/flight")
    [ "${flight:-0}" -ge "$least" ] || complain "$op: $kernel has ${flight:-0} loads on their way, expected at least $least"
  fi
done < "$work/table"
if [ -z "$disassembler" ]; then
  echo "skipped: loads on their way (no nvdisasm)"
  skipped=1
fi
echo "$((kernels - failures)) passed, $failures failed, $skipped skipped"
[ "$failures" = 0 ]
