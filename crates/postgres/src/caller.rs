//! The package that uses the connections.

/// The package that uses the connections, for the texts of errors and the names of threads.
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
    /// The name of the package. Its feature `postgres-tls` turns on the feature `tls` of this
    /// crate.
    pub package: &'static str,
    /// The type that has the functions `tls_root_certificate_pem` and `tls_client_certificate_pem`.
    pub builder: &'static str,
    /// The first part of the names of threads, which end with `-connect` or `-listen`.
    pub threads: &'static str,
}

/// The caller in tests.
#[cfg(test)]
pub(crate) const TEST: Caller = Caller {
    package: "a-package",
    builder: "ABuilder",
    threads: "test",
};
