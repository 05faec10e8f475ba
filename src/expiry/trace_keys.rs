//! Whether spans and warnings show keys. Feature `tracing`.

use std::fmt;

use super::ExpiryMapBuilder;

impl<K, V, S> ExpiryMapBuilder<K, V, S> {
    /// Shows the keys in spans and warnings of the crate `tracing`, as their `Debug` writes them. By
    /// default they are not shown, since keys may be secrets, such as those of sessions. Needs the
    /// feature `tracing`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::ExpiryMap;
    ///
    /// let map = ExpiryMap::<u64, String>::builder()
    ///     .trace_keys()
    ///     .build(|_, _| ())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tracing")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tracing")))]
    pub fn trace_keys(mut self) -> Self
    where
        K: fmt::Debug,
    {
        self.show_key = Some(K::fmt);
        self
    }
}
