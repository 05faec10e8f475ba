# What the steps share. Sourced by `.ci/run`.

complain() {
    echo "ci: $*" >&2
    return 1
}

metadata() { cargo metadata --format-version 1 --no-deps --locked; }

# The whole state of the tree, so that a run by hand with changes can be compared too.
tree_state() {
    git status --porcelain
    git diff HEAD | git hash-object --stdin
}

# One line per member of the workspace, asked of cargo: a new member or feature is checked from its first
# day. In cargo's answer a member begins with its name and ends with where it may be published.
members() {
    metadata | grep -oP '\{"name":"[^"]+","version":"[^"]*","id":"path\+.*?"publish":(null|\[[^]]*\])'
}

# The names of the members that are published.
published() { members | sed -nE 's/^\{"name":"([^"]+)".*"publish":null$/\1/p'; }

# The features of a member, none of which is an answer too. They are an object, and those of its
# dependencies are lists.
features_of() {
    local object
    object=$(members | grep -E "^\{\"name\":\"$1\"," | grep -oE '"features":\{[^}]*\}') || {
        complain "no features of $1 in cargo's metadata"
        return 1
    }
    sed 's/^"features"://' <<<"$object" | { grep -oE '"[^"]+":\[' || true; } | tr -d '":['
}

# as_root COMMAND..: runs the command as root.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# apt_get ARGUMENT..: runs apt-get, and waits while another process holds one of its locks. apt's own option
# waits for the lock of dpkg and not for that of the lists, so it is asked again, for ten minutes.
apt_get() {
    local output left=120
    until output=$(as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=600 "$@" 2>&1); do
        echo "$output"
        if [ $((left -= 1)) = 0 ] || ! grep -q 'Could not get lock' <<<"$output"; then return 1; fi
        sleep 5
    done
    echo "$output"
}

# debian_package PACKAGE PROGRAM: installs the package if the program is missing.
debian_package() {
    if ! command -v "$2" >/dev/null; then
        apt_get update -qq
        apt_get install -y "$1"
    fi
}

# on_idle_cores: from now on this shell and its children get a core only when nothing else wants it.
on_idle_cores() {
    chrt --idle --pid 0 "$BASHPID" 2>/dev/null || renice -n 19 -p "$BASHPID" >/dev/null
}
