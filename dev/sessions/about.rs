//! The answer to `--version`.

/// Returns the version, like `NAME (tourbillon) 0.1.0`.
pub(crate) fn version(name: &str) -> String {
    format!("{name} (tourbillon) {}\n", env!("CARGO_PKG_VERSION"))
}
