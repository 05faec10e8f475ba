//! Numbers that are unique in the process. The models compile this file, too.

/// Returns a number that no other call in this process gets, within 4 billion calls.
pub(crate) fn unique_number() -> u32 {
    // std's atomic even under the checker, which has no statics: nothing is ordered by it.
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    // Relaxed: only the numbers must differ.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
