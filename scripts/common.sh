# Read by the scripts beside it: how they speak, and where they keep what they make.
cache=$PWD/.cache
mkdir -p "$cache"
target=${CARGO_TARGET_DIR:-$PWD/target}

# One line per step, with the time since the start.
step() { printf '[%3ds] %s\n' "$SECONDS" "$*" >&2; }

# What failed and what to do about it; ends the script.
fail() {
  printf '\n%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# Runs a command with its output in a file: told in one line, then now and then its newest line while it lasts; shown when it fails.
quietly() {
  local name=$1 log pid status=0 shown=$SECONDS newest= line
  shift
  log=$cache/$(echo "$name" | tr -c 'a-z0-9\n' '-').log
  step "$name"
  "$@" >"$log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if [ $((SECONDS - shown)) -ge 20 ]; then
      shown=$SECONDS
      line=$(tail -n 1 "$log" | tr -d '\r' | cut -c 1-100)
      if [ "$line" != "$newest" ]; then
        step "  ... $line"
      else
        # Cargo says nothing while it optimises and links the whole program, the longest step of all.
        step "  ... still:$line (optimising and linking the whole program takes minutes)"
      fi
      newest=$line
    fi
  done
  wait "$pid" || status=$?
  [ "$status" = 0 ] || fail "'$name' failed. The end of $log:
$(tail -n 25 "$log")
$(advice "$log")"
}

# What to do about a failed step, as far as its output LOG tells.
advice() {
  if grep -qiE 'no space left' "$1"; then
    echo "The disk is full: make room, then run the command again."
  elif grep -qiE 'resolve host|network (error|is unreachable)|timed out|connection (refused|reset)|failed to download' "$1"; then
    echo "It seems that a download did not succeed. Look at the network, or name a registry that can be reached in
~/.cargo/config.toml (Rust) or pip's configuration (Python), then run the command again: what is done stays done."
  else
    echo "When that is mended, run the command again: what is done stays done."
  fi
}

# Compiles a shared library with OPTIONS, unless it is there, made of what has the same SUM: WHAT PATH SUM OPTIONS...
compile_library() {
  local what=$1 made=$2 sum=$3 compiler=${CXX:-g++}
  shift 3
  if [ -f "$made" ] && [ "$(cat "$made.source" 2>/dev/null)" = "$sum" ]; then
    step "$what is there"
    return
  fi
  command -v "$compiler" >/dev/null || fail "$compiler is needed to compile $what (apt-get install g++)."
  mkdir -p "$(dirname "$made")"
  quietly "compiling $what" "$compiler" -O2 -fPIC -shared -fvisibility=hidden "$@" -o "$made.part"
  mv "$made.part" "$made"
  echo "$sum" >"$made.source"
}

# Makes TARGET the same file as SOURCE. No symbolic link: a server resolves those before it looks beside a library.
same_file() { [ "$2" -ef "$1" ] || ln -f "$1" "$2" 2>/dev/null || cp -f "$1" "$2"; }

# Puts the backends that cargo built in PROFILE where a server looks for them, and prints that directory.
lay_out_backends() {
  local profile=$1 directory=$cache/backends/$1 library name
  for library in "$target/$profile"/libtriton_*.so; do
    [ -e "$library" ] || continue
    name=$(basename "$library" .so)
    name=${name#libtriton_}
    mkdir -p "$directory/$name"
    same_file "$library" "$directory/$name/$(basename "$library")"
  done
  if [ -e "$directory/python" ]; then
    same_file "$target/$profile/libconch_python_stub.so" "$directory/python/libconch_python_stub.so"
    local runtime
    runtime=$(dirname "${BASH_SOURCE[0]}")/../src/backends/python/runtime
    for library in "$runtime"/*/*.py; do
      name=$(basename "$(dirname "$library")")
      mkdir -p "$directory/python/$name"
      same_file "$library" "$directory/python/$name/$(basename "$library")"
    done
  fi
  # Engines that scripts/fetch-runtime has fetched, beside the backends that open them. Headers are not for running.
  for library in "$(dirname "${BASH_SOURCE[0]}")"/runtimes/*.sh; do
    name=$(basename "$library" .sh)
    [ -d "$cache/$name" ] && [ -d "$directory/$name" ] || continue
    (cd "$cache/$name" && find . -path ./include -prune -o -type f ! -name '*.part' -print) | while read -r library; do
      mkdir -p "$directory/$name/$(dirname "$library")"
      same_file "$cache/$name/$library" "$directory/$name/$library"
    done
  done
  echo "$directory"
}
