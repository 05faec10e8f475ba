//! What belongs to the present process. The models compile this file, too.

/// A number that no other call of this process gets, within 4 billion of them.
pub(crate) fn unique_number() -> u32 {
    // std's atomic even under the checker, which has no statics: nothing is ordered by it.
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    // Relaxed: only the numbers must differ.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
