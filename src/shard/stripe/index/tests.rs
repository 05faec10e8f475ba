use super::*;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u64::from((self.0 >> 32) as u32) * u64::from(end)) >> 32) as u32
    }
}

impl Index {
    /// Checks the invariants against the lines.
    fn check(&self) {
        let rows = self.rows.len();
        let mut passed = vec![0; rows];
        let mut slots = Vec::new();
        for (lies, row) in self.rows.iter().enumerate() {
            for cell in 0..CELLS {
                if row.used() & bit(cell) == 0 {
                    assert_eq!(row.slots[cell], NO_ENTRY, "INDEX-5");
                    continue;
                }
                slots.push(row.slots[cell]);
                let mut at = home(row.bits[cell], rows);
                while at != lies {
                    passed[at] += 1;
                    at = self.next(at);
                }
            }
        }
        for (row, passed) in self.rows.iter().zip(passed) {
            assert_eq!(row.passed(), passed, "INDEX-1");
            assert!(
                passed == 0 || row.used().count_ones() as usize == CELLS,
                "INDEX-2"
            );
        }
        assert!(
            self.limit as usize <= rows * CELLS && self.lines <= self.limit,
            "INDEX-3"
        );
        assert_eq!(slots.len(), self.lines as usize);
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), self.lines as usize, "INDEX-4");
    }

    /// Returns the number of rows after `lines` lines were inserted one by one.
    pub(crate) fn rows_for(lines: usize) -> usize {
        let mut rows = 0;
        while limit_of(rows) < lines {
            rows = more_than(rows);
        }
        rows
    }

    /// Returns the home row of bits.
    pub(crate) fn home_in(rows: usize, bits: u32) -> usize {
        home(bits, rows)
    }

    /// Returns the greatest number of rows that the lookup of an absent key reads, for the
    /// given number of lines with each home row. The order of insertion does not matter: the
    /// number of lines that find no room in a row does not depend on it.
    pub(crate) fn longest_way(homes: &[u32]) -> usize {
        let rows = homes.len();
        let mut passed = vec![0; rows];
        let mut carried = 0;
        // Twice around, since probe sequences wrap.
        for row in (0..rows).chain(0..rows) {
            carried = (homes[row] + carried).saturating_sub(CELLS as u32);
            passed[row] = carried;
        }
        let mut longest = 0;
        let mut way = 1;
        for row in (0..rows).chain(0..rows) {
            longest = longest.max(way);
            way = if passed[row] > 0 { way + 1 } else { 1 };
        }
        longest.min(rows)
    }

    /// Returns the same for the present rows.
    fn longest(&self) -> usize {
        let mut longest = 0;
        for mut at in 0..self.rows.len() {
            let mut read = 1;
            while self.rows[at].passed() > 0 {
                read += 1;
                at = self.next(at);
            }
            longest = longest.max(read);
        }
        longest
    }

    /// Returns the mean number of rows that the lookup of an absent key reads.
    fn vain(&self) -> f64 {
        let rows = self.rows.len();
        let mut read = 0;
        for mut at in 0..rows {
            read += 1;
            while self.rows[at].passed() > 0 {
                read += 1;
                at = self.next(at);
            }
        }
        f64::from(read) / rows as f64
    }
}

/// Runs random operations on an index and on a map from slots to bits. `bits_of` makes the bits
/// of a random number.
fn against_the_model(seed: u64, operations: u32, most: u32, bits_of: fn(u32) -> u32) {
    let mut rng = Rng(seed);
    let mut index = Index::new();
    let mut model = HashMap::new();
    for operation in 0..operations {
        // In waves, so that it is filled, emptied and filled again.
        let inserts = if (operation / (2 * most)).is_multiple_of(2) {
            3
        } else {
            1
        };
        let slot = rng.below(most);
        let bits = model.get(&slot).copied();
        assert_eq!(
            bits.and_then(|bits| index.find(bits, |found| found == slot)),
            bits.map(|_| slot)
        );
        match bits {
            None if rng.below(4) < inserts => {
                let bits = bits_of(rng.below(u32::MAX));
                match index.vacancy(bits) {
                    Ok(vacancy) if rng.below(2) == 0 => index.fill(vacancy, bits, slot),
                    _ => index.insert(bits, slot),
                }
                model.insert(slot, bits);
            }
            Some(bits) if rng.below(8) == 0 => {
                let to = most + slot;
                index.renumber(bits, slot, to);
                assert_eq!(index.find(bits, |found| found == slot), None);
                assert_eq!(index.find(bits, |found| found == to), Some(to));
                index.renumber(bits, to, slot);
            }
            Some(bits) if rng.below(4) >= inserts => {
                match index.first_at_home(bits) {
                    Ok(line) if line.slot == slot && rng.below(2) == 0 => {
                        index.remove_at_home(line);
                    }
                    found => {
                        assert_ne!(found.err(), Some(NotUsual::Absent));
                        index.remove(bits, slot);
                    }
                }
                model.remove(&slot);
                assert_eq!(index.find(bits, |found| found == slot), None);
            }
            _ => {}
        }
        if operation % 16 == 0 {
            index.check();
        }
    }
    for (slot, bits) in model {
        assert_eq!(index.find(bits, |found| found == slot), Some(slot));
        index.remove(bits, slot);
        index.check();
    }
    assert!(index.is_empty());
    assert!(index.rows.iter().all(|row| row.passed() == 0));
}

#[test]
fn it_does_what_a_map_does() {
    for seed in 1..=8 {
        against_the_model(seed, 6_000, 3 * seed as u32, |random| random);
        against_the_model(seed, 6_000, 400, |random| random);
    }
}

#[test]
fn it_does_what_a_map_does_when_hashes_collide() {
    for seed in 1..=8 {
        for most in [15, 120] {
            against_the_model(seed, 4_000, most, |_| 0);
            against_the_model(seed, 4_000, most, |_| u32::MAX);
            against_the_model(seed, 4_000, most, |random| random % 3 * 0x5555_5555);
            // All home rows are the last one, so every probe sequence wraps.
            against_the_model(seed, 4_000, most, |random| random | 0xff00_0000);
        }
    }
}

/// Returns what a call for many keys compares first.
fn first_candidate(index: &Index, bits: u32) -> u32 {
    match index.candidate(bits) {
        NO_ENTRY => index.candidate_behind(bits),
        candidate => candidate,
    }
}

#[test]
fn candidates_are_the_slots_of_lines_while_none_is_removed() {
    let mut index = Index::new();
    assert_eq!(first_candidate(&index, 7), NO_ENTRY);
    // Odd numbers times a constant: all bits differ, and few homes make many lines pass full rows.
    let bits_of = |slot: u32| (slot * 2 + 1).wrapping_mul(0x9e37_79b9) >> 2;
    for slot in 0..2_000 {
        index.insert(bits_of(slot), slot);
    }
    let mut behind = 0;
    for slot in 0..2_000 {
        assert_eq!(first_candidate(&index, bits_of(slot)), slot);
        behind += u32::from(index.candidate(bits_of(slot)) == NO_ENTRY);
    }
    assert!(behind > 20, "lines behind their home rows: {behind}");
    for absent in 2_000..4_000 {
        assert_eq!(first_candidate(&index, bits_of(absent)), NO_ENTRY);
    }
}

#[test]
fn every_line_has_a_candidate_however_often_lines_come_and_go() {
    let mut rng = Rng(9);
    let mut index = Index::new();
    let mut lines = HashMap::new();
    let mut others = 0;
    for _ in 0..20_000 {
        let slot = rng.below(600);
        match lines.remove(&slot) {
            Some(bits) => index.remove(bits, slot),
            None => {
                // Few values, so that removed lines with the same bits are in the way.
                let bits = rng.below(300).wrapping_mul(0x0123_4567);
                index.insert(bits, slot);
                lines.insert(slot, bits);
            }
        }
        let asked = rng.below(600);
        if let Some(bits) = lines.get(&asked) {
            let candidate = first_candidate(&index, *bits);
            assert_ne!(candidate, NO_ENTRY);
            others += u32::from(candidate != asked);
        }
    }
    assert!(others > 100, "candidates of other keys: {others}");
}

#[test]
fn it_grows_from_nothing_in_small_steps() {
    let mut index = Index::new();
    let mut sizes = vec![index.rows.len()];
    for slot in 0..70_u32 {
        index.insert(slot.wrapping_mul(0x9e37_79b9), slot);
        index.check();
        if index.rows.len() != sizes[sizes.len() - 1] {
            sizes.push(index.rows.len());
        }
    }
    assert_eq!(sizes, [0, 1, 2, 4, 6, 9, 13]);
}

#[test]
fn an_empty_one_finds_nothing() {
    let mut index = Index::new();
    assert_eq!(index.find(7, |_| unreachable!()), None);
    index.remove(7, 7);
    index.renumber(7, 7, 8);
    assert!(index.is_empty() && index.rows.is_empty());
}

#[test]
fn rows_are_kept_after_a_peak_until_they_are_to_be_given_back() {
    let mut rng = Rng(5);
    let bits: Vec<_> = (0..1_000).map(|_| rng.below(u32::MAX)).collect();
    for left in [0, 1, 7, 8, 100, 1_000] {
        let mut index = Index::new();
        for (slot, bits) in (0..).zip(&bits) {
            index.insert(*bits, slot);
        }
        let most = index.rows();
        for (slot, bits) in (0..).zip(&bits).skip(left) {
            index.remove(*bits, slot);
        }
        assert_eq!(index.rows(), most);
        index.shrink_to_fit();
        index.check();
        let fewer = limit_of(index.rows().saturating_sub(1) / 3 * 2);
        assert!(left == 0 && index.rows() == 0 || fewer <= left, "{left}");
        assert_eq!(index.is_empty(), left == 0);
        // The remaining lines are found, and new ones find room.
        for (slot, bits) in (0..1_000).zip(&bits) {
            let found = index.find(*bits, |found| found == slot);
            assert_eq!(found, (slot < left as u32).then_some(slot));
            if found.is_none() {
                index.insert(*bits, slot);
                index.check();
            }
        }
        assert_eq!(index.rows(), most);
    }
}

#[test]
fn only_equal_bits_are_asked_about_and_a_panic_changes_nothing() {
    let mut index = Index::new();
    for slot in 0..40 {
        index.insert(slot % 4, slot);
    }
    let mut asked = Vec::new();
    let answer = index.find(2, |slot| {
        asked.push(slot);
        false
    });
    assert_eq!(answer, None);
    asked.sort_unstable();
    assert!(asked.iter().copied().eq((2..40).step_by(4)));
    let looking = AssertUnwindSafe(|| index.find(2, |_| panic!("Eq panics")));
    assert!(catch_unwind(looking).is_err());
    index.check();
    assert_eq!(index.find(3, |slot| slot == 39), Some(39));
}

#[test]
fn the_longest_way_follows_from_the_homes() {
    let mut rng = Rng(3);
    for lines in [1, 7, 8, 40, 500, 1_000, 1_160] {
        let rows = Index::rows_for(lines);
        let mut index = Index::new();
        let mut homes = vec![0; rows];
        for slot in 0..lines as u32 {
            // Crowded, most of all at the end, where probe sequences wrap.
            let bits = rng.below(u32::MAX) | rng.below(u32::MAX) & rng.below(u32::MAX);
            index.insert(bits, slot);
            homes[home(bits, rows)] += 1;
        }
        index.check();
        assert_eq!(index.rows.len(), rows);
        assert_eq!(Index::longest_way(&homes), index.longest());
    }
}

#[test]
fn lookups_stay_short_however_often_lines_come_and_go() {
    let mut rng = Rng(1);
    let mut index = Index::new();
    let mut lines = Vec::new();
    // As full as it gets before it grows.
    while index.rows.len() < 400 || index.lines < index.limit {
        let (bits, slot) = (rng.below(u32::MAX), lines.len() as u32);
        index.insert(bits, slot);
        lines.push(bits);
    }
    let before = index.vain();
    for _ in 0..10 * lines.len() {
        let slot = rng.below(lines.len() as u32);
        let bits = &mut lines[slot as usize];
        index.remove(*bits, slot);
        *bits = rng.below(u32::MAX);
        index.insert(*bits, slot);
    }
    index.check();
    assert!(before < 3.0 && index.vain() < 3.0);
}
