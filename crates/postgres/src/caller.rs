//! Who uses the connections.

/// Who uses the connections, as errors and lists of threads name it.
///
/// # Examples
///
/// ```
/// use tourbillon_postgres::Caller;
///
/// const CALLER: Caller = Caller {
///     package: "tourbillon-durable",
///     builder: "PostgresBuilder",
///     threads: "durable",
/// };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The package whose feature `postgres-tls` turns the feature `tls` on.
    pub package: &'static str,
    /// The type that has the functions `tls_root_certificate_pem` and `tls_client_certificate_pem`.
    pub builder: &'static str,
    /// The begin of the names of threads.
    pub threads: &'static str,
}

/// The caller in tests.
#[cfg(test)]
pub(crate) const TEST: Caller = Caller {
    package: "a-package",
    builder: "ABuilder",
    threads: "test",
};
