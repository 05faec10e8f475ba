use super::*;

/// Starts at the numeric ends and at the borders of levels.
const STARTS: [u64; 12] = [
    0,
    1,
    63,
    64,
    4_095,
    (1 << 31) - 100,
    (1 << 36) - 1,
    1 << 36,
    (1 << 63) - 1,
    u64::MAX - (1 << 36),
    u64::MAX - 1,
    u64::MAX,
];

const ORIGINS: [u64; 6] = [
    0,
    1,
    12_345 * 4_096,
    1 << 35,
    0x9e37_79b9_7f4a_7c15,
    u64::MAX,
];

/// The distances at which something changes: around once, twice and three times a level's span.
fn borders() -> Vec<u64> {
    let mut all = vec![0, 1, 2, 500, 70_000, 17_000_000, 1 << 31, 1 << 33, u64::MAX];
    for level in 0..=LEVELS as u32 {
        for turns in 1..=3 {
            let span = turns << (DIGIT * level);
            all.extend([span - 1, span, span + 1]);
        }
    }
    all.extend([(1 << 60) - 1, 1 << 60, (1 << 63) + 1, u64::MAX - 1]);
    all
}

/// Starts, origins and distances such that the due tick exists.
fn cases() -> impl Iterator<Item = (u64, u64, u64)> {
    let pairs = STARTS
        .iter()
        .flat_map(|&start| ORIGINS.map(|origin| (start, origin)));
    pairs.flat_map(|(start, origin)| {
        borders()
            .into_iter()
            .filter_map(move |d| Some((start, origin, start.checked_add(d)?)))
    })
}

const ALL: Budget = Budget {
    expired: usize::MAX,
    allowed: usize::MAX,
    cascaded: usize::MAX,
};

/// A budget without a limit on what is allowed to expire.
const fn limited(expired: usize, cascaded: usize) -> Budget {
    Budget {
        expired,
        allowed: usize::MAX,
        cascaded,
    }
}

/// A wheel and its entries. Every call checks all invariants.
struct Rig {
    wheel: CoreWheel,
    arena: Arena,
}

#[derive(Default)]
struct Arena {
    due: Vec<Tick>,
    wheel_position: Vec<(WheelPosition, u32)>,
    /// The due tick the entry had when it was put where it lies.
    filed: Vec<Tick>,
}

impl EntryStore for Arena {
    fn due(&self, id: u32) -> Tick {
        self.due[id as usize]
    }

    fn wheel_position(&self, id: u32) -> (WheelPosition, u32) {
        self.wheel_position[id as usize]
    }

    fn set_wheel_position(&mut self, id: u32, wheel_position: WheelPosition, pos: u32) {
        let id = id as usize;
        // With the same place only the position changes.
        if self.wheel_position[id].0 != wheel_position {
            self.filed[id] = self.due[id];
        }
        self.wheel_position[id] = (wheel_position, pos);
    }
}

impl Rig {
    fn new(start: u64, origin: u64) -> Rig {
        Rig {
            wheel: CoreWheel::new(Tick::new(start), origin),
            arena: Arena::default(),
        }
    }

    fn insert(&mut self, due: u64) -> u32 {
        let id = self.arena.due.len() as u32;
        self.arena.due.push(Tick::new(due));
        self.arena.filed.push(Tick::new(due));
        self.arena.wheel_position.push((WheelPosition::NONE, 0));
        self.wheel.insert(id, Tick::new(due), &mut self.arena);
        self.check();
        id
    }

    fn remove(&mut self, id: u32) {
        self.wheel.remove(id, &mut self.arena);
        self.check();
    }

    /// As owners do it: lazy push-out, eager pull-in.
    fn reschedule(&mut self, id: u32, due: u64) {
        let due = Tick::new(due);
        let floor = self
            .wheel
            .filed_floor(self.arena.wheel_position(id).0)
            .expect("it is filed");
        if due < floor {
            self.wheel.remove(id, &mut self.arena);
            self.arena.due[id as usize] = due;
            self.wheel.insert(id, due, &mut self.arena);
        } else {
            self.arena.due[id as usize] = due;
        }
        self.check();
    }

    fn is_filed(&self, id: u32) -> bool {
        self.arena.wheel_position(id).0 != WheelPosition::NONE
    }

    /// The due ticks of what expired.
    fn advance_within(&mut self, to: u64, budget: &mut Budget) -> (Vec<u64>, CoreProgress) {
        let before = *budget;
        let mut fired = Vec::new();
        let progress = self.wheel.advance(
            Tick::new(to),
            budget,
            &mut self.arena,
            &mut |arena: &mut Arena, id| {
                assert_eq!(arena.wheel_position(id).0, WheelPosition::NONE, "WHEEL-4");
                fired.push(arena.due(id).get());
            },
        );
        assert!(
            fired.len() <= before.expired - budget.expired,
            "expiry is budgeted"
        );
        assert_eq!(fired.len(), before.allowed - budget.allowed);
        self.check();
        (fired, progress)
    }

    fn advance(&mut self, to: u64) -> Vec<u64> {
        let (fired, progress) = self.advance_within(to, &mut ALL.clone());
        assert_eq!(progress, CoreProgress::Done);
        assert!(fired.iter().all(|&due| due <= to), "never early");
        fired
    }

    fn wake(&self) -> Option<u64> {
        self.wheel.next_wake().map(Tick::get)
    }

    /// Checks every invariant by a walk over everything.
    fn check(&self) {
        let (wheel, arena) = (&self.wheel, &self.arena);
        let mut found = 0;
        // As `next_wake` has it, but from the due ticks and without bitmaps.
        let mut wake: Option<Tick> = None;
        let mut wake_at = |tick: Tick| wake = Some(wake.map_or(tick, |wake| wake.min(tick)));
        for (n, level) in wheel.levels.iter().enumerate() {
            for slot in 0..SLOTS as u32 {
                let ids = level.ids(slot);
                assert_eq!(level.is_occupied(slot), !ids.is_empty());
                for (pos, &id) in ids.iter().enumerate() {
                    found += 1;
                    assert_eq!(
                        arena.wheel_position(id),
                        (WheelPosition::slot(n, slot), pos as u32),
                        "WHEEL-1"
                    );
                    assert!(slot >= wheel.digit(n), "WHEEL-2");
                    let (due, filed) = (arena.due(id), arena.filed[id as usize].max(wheel.now));
                    let start = wheel.start_of(n, slot);
                    assert!(
                        start <= due.max(wheel.now),
                        "WHEEL-3: level {n} slot {slot}"
                    );
                    let into_slot = wheel.shifted(filed) & ((1 << (DIGIT * n as u32)) - 1);
                    let begun = filed.get().saturating_sub(into_slot);
                    wake_at(Tick::new(begun).max(wheel.now));
                }
            }
        }
        for (pos, &id) in wheel.drain.ids.iter().enumerate().skip(wheel.drain.next) {
            if id != NO_ENTRY {
                found += 1;
                assert_eq!(arena.wheel_position(id).1, pos as u32, "WHEEL-1");
                wake_at(wheel.now);
            }
        }
        for (list, ids) in [&wheel.far, &wheel.far_debt].into_iter().enumerate() {
            for (pos, &id) in ids.iter().enumerate() {
                found += 1;
                assert_eq!(
                    arena.wheel_position(id),
                    (WheelPosition::FAR, pos as u32),
                    "WHEEL-1"
                );
                let begun = wheel.turn_of(wheel.far_min);
                assert!(
                    list == 1 || begun > wheel.now && arena.due(id) >= begun,
                    "WHEEL-6"
                );
                wake_at(if list == 0 { begun } else { wheel.now });
            }
        }
        assert_eq!(found, wheel.len, "WHEEL-1");
        // c145
        assert_eq!(wheel.next_wake(), wake);
    }
}

/// A small generator, so that failures repeat.
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Distances of every magnitude.
    fn distance(&mut self) -> u64 {
        let bits = self.below(40);
        self.below(1 << bits)
    }
}

#[test]
fn c016_exact_at_every_border_from_every_start() {
    // c008 c009 c017 c018 c019 c021 c023 c025 c031
    for (start, origin, due) in cases() {
        let mut rig = Rig::new(start, origin);
        rig.insert(due);
        if due > start {
            assert_eq!(rig.advance(due - 1), [], "early: {start} {origin} {due}");
        }
        assert_eq!(rig.advance(due), [due], "late: {start} {origin} {due}");
        assert!(rig.wheel.is_empty());
    }
}

#[test]
fn c142_few_wake_ups_lead_to_the_due_tick() {
    for (start, origin, due) in cases() {
        let mut rig = Rig::new(start, origin);
        rig.insert(due);
        let mut wakes = 0;
        loop {
            let wake = rig.wake().expect("it is still there");
            assert!(wake >= rig.wheel.now().get() && wake <= due);
            assert!(
                wakes == 0 || wake > rig.wheel.now().get(),
                "a wake-up brings it forward"
            );
            wakes += 1;
            if !rig.advance(wake).is_empty() {
                assert_eq!(wake, due);
                break;
            }
        }
        assert!(wakes <= LEVELS + 1, "{start} {origin} {due}");
        assert_eq!(rig.wake(), None);
    }
}

#[test]
fn c020_just_before_its_tick_an_entry_is_on_the_lowest_level() {
    for (start, origin, due) in cases() {
        let mut rig = Rig::new(start, origin);
        let id = rig.insert(due);
        if due > start {
            assert_eq!(rig.advance(due - 1), []);
            assert_eq!(rig.wheel.len(), 1);
            let wheel_position = rig.arena.wheel_position(id).0;
            // Where the border of a higher slot lies between the two ticks it comes down with the
            // last one, so only without such a border it is on level 0 already.
            let differing = rig.wheel.shifted(Tick::new(due)) ^ rig.wheel.shifted(rig.wheel.now());
            let far = differing >> TURN != 0;
            assert_eq!(wheel_position == WheelPosition::FAR, far);
            if !far {
                let (level, _) = wheel_position.level_and_slot();
                assert_eq!(level as u32, differing.ilog2() / DIGIT);
            }
        }
    }
}

#[test]
fn c014_what_is_past_is_due_at_once() {
    // c011 c012 c013
    for start in STARTS {
        for origin in ORIGINS {
            let mut rig = Rig::new(start, origin);
            let soon = start.saturating_add(1);
            rig.insert(soon);
            let past: Vec<u64> = (0..=5)
                .map(|n| start.saturating_sub(n))
                .chain([0])
                .collect();
            for &due in &past {
                rig.insert(due);
            }
            assert_eq!(rig.wake(), Some(start));
            let mut fired = rig.advance(start);
            fired.sort_unstable();
            let mut expected = past;
            expected.extend((soon == start).then_some(soon));
            expected.sort_unstable();
            assert_eq!(fired, expected);
            assert_eq!(rig.advance(soon).len(), usize::from(soon > start));
        }
    }
}

#[test]
fn c015_what_is_armed_for_now_is_the_next_rounds() {
    let mut rig = Rig::new(100, 0);
    rig.insert(100);
    for _ in 0..3 {
        assert_eq!(rig.advance(100), [100]);
        rig.insert(100);
    }
    // While a drain is unfinished, too: served after what the drain has taken.
    for _ in 0..3 {
        rig.insert(99);
    }
    let mut one = limited(2, 0);
    let (fired, progress) = rig.advance_within(100, &mut one);
    assert_eq!((fired, progress), (vec![100, 99], CoreProgress::Expired));
    rig.insert(98);
    assert_eq!(rig.advance(100), [99, 99, 98]);
}

#[test]
fn c022_the_last_tick_is_a_tick_like_any_other() {
    for start in STARTS {
        for origin in ORIGINS {
            let mut rig = Rig::new(start, origin);
            let kept = rig.insert(u64::MAX);
            let removed = rig.insert(u64::MAX);
            rig.remove(removed);
            if start < u64::MAX {
                assert_eq!(rig.advance(u64::MAX - 1), []);
            }
            assert!(rig.is_filed(kept));
            assert_eq!(rig.advance(u64::MAX), [u64::MAX]);
        }
    }
}

#[test]
fn c026_the_digits_cross_zero() {
    for before in [1, 64, 4_096, 1 << 20, 1 << 36, 1 << 40] {
        // Zero of the digits lies `before` ticks after the start.
        let start = 1 << 50;
        let origin = 0_u64.wrapping_sub(start + before);
        let mut rig = Rig::new(start, origin);
        let mut dues: Vec<u64> = [
            before - 1,
            before,
            before + 1,
            2 * before + 2,
            before + (1 << 36),
        ]
        .map(|distance| start + distance)
        .to_vec();
        dues.sort_unstable();
        for &due in dues.iter().rev() {
            rig.insert(due);
        }
        for &due in &dues {
            if due > rig.wheel.now().get() {
                assert_eq!(rig.advance(due - 1), []);
            }
            assert_eq!(rig.advance(due), [due]);
        }
    }
}

#[test]
fn c027_every_one_fires_in_its_tick_over_the_32_bit_border() {
    for start in [(1 << 31) - 100, (1_u64 << 32) - 100] {
        let mut rig = Rig::new(start, 0);
        for n in 0..40 {
            rig.insert(start + 5 * n);
        }
        for tick in start..start + 200 {
            let expected = if (tick - start) % 5 == 0 {
                vec![tick]
            } else {
                vec![]
            };
            assert_eq!(rig.advance(tick), expected);
        }
    }
}

#[test]
fn c028_a_jump_of_years_costs_slots_and_not_ticks() {
    for origin in ORIGINS {
        let mut rig = Rig::new(0, origin);
        let mut dues: Vec<u64> = (0..60).map(|n| 1 << n).collect();
        for &due in &dues {
            rig.insert(due);
        }
        let later = rig.insert(1 << 63);
        let mut budget = ALL;
        let (mut fired, progress) = rig.advance_within(1 << 62, &mut budget);
        assert_eq!(progress, CoreProgress::Done);
        fired.sort_unstable();
        dues.sort_unstable();
        assert_eq!(fired, dues, "each once");
        assert_eq!(ALL.expired - budget.expired, dues.len());
        // At most once per level and once from afar, however many turns have passed.
        assert!(ALL.cascaded - budget.cascaded <= (LEVELS) * (dues.len() + 1));
        assert!(rig.is_filed(later));
    }
}

#[test]
fn c029_a_clock_that_goes_back_changes_nothing() {
    let mut rig = Rig::new(1 << 40, 0);
    let mut random = Xorshift(29);
    let mut dues: Vec<u64> = (0..1_000)
        .map(|_| (1 << 40) + 1 + random.below(5_000))
        .collect();
    for &due in &dues {
        rig.insert(due);
    }
    let half = rig.advance((1 << 40) + 2_500);
    for back in [1, 64, 3 * 4_096, 1 << 40] {
        assert_eq!(rig.advance(((1 << 40) + 2_500) - back), []);
        assert_eq!(rig.wheel.now().get(), (1 << 40) + 2_500);
    }
    let rest = rig.advance((1 << 40) + 5_000);
    dues.sort_unstable();
    assert_eq!([half, rest].concat(), dues);
}

#[test]
fn c030_any_cadence_finds_every_entry() {
    for stride in [1, 2, 3, 63, 64, 65, 129] {
        let mut rig = Rig::new(0, 4_096 * 7 + 3);
        let dues: Vec<u64> = (0..600).collect();
        for &due in &dues {
            rig.insert(due);
        }
        let mut fired = Vec::new();
        for now in (0..600 + stride).step_by(stride as usize) {
            let batch = rig.advance(now);
            assert!(batch.iter().all(|&due| due <= now && due + stride > now));
            fired.extend(batch);
        }
        assert_eq!(fired, dues);
    }
}

#[test]
fn c032_random_entries_and_random_steps() {
    for (n, origin) in ORIGINS.into_iter().enumerate() {
        let mut random = Xorshift(n as u64 + 32);
        let mut rig = Rig::new(STARTS[n], origin);
        let mut waiting: Vec<u64> = Vec::new();
        for _ in 0..200 {
            for _ in 0..random.below(6) {
                let due = rig.wheel.now().get() + random.distance();
                rig.insert(due);
                waiting.push(due);
            }
            let to = rig.wheel.now().get() + random.distance();
            let mut fired = rig.advance(to);
            let mut expected: Vec<u64> = waiting.extract_if(.., |due| *due <= to).collect();
            fired.sort_unstable();
            expected.sort_unstable();
            assert_eq!(fired, expected);
            assert_eq!(rig.wheel.len(), waiting.len());
        }
    }
}

#[test]
fn c032_five_thousand_entries() {
    let mut random = Xorshift(5_000);
    let mut wheel = CoreWheel::new(Tick::ZERO, 99);
    let mut arena = Arena::default();
    let mut dues: Vec<u64> = (0..5_000).map(|_| random.distance()).collect();
    for (id, &due) in (0..).zip(&dues) {
        arena.due.push(Tick::new(due));
        arena.filed.push(Tick::new(due));
        arena.wheel_position.push((WheelPosition::NONE, 0));
        wheel.insert(id, Tick::new(due), &mut arena);
    }
    let mut fired = Vec::new();
    let mut now = 0;
    while !wheel.is_empty() {
        now += random.distance();
        let mut sink = |arena: &mut Arena, id| fired.push(arena.due(id).get());
        let progress = wheel.advance(Tick::new(now), &mut ALL.clone(), &mut arena, &mut sink);
        assert_eq!(progress, CoreProgress::Done);
        assert_eq!(fired.len(), dues.iter().filter(|&&due| due <= now).count());
    }
    dues.sort_unstable();
    fired.sort_unstable();
    assert_eq!(fired, dues);
}

#[test]
fn c036_what_is_inserted_during_an_oversleep_is_never_early() {
    // c037: entries armed after a slow callback, when time has gone on and the wheel has not.
    for overslept in [1, 5, 63, 64, 65, 4_097] {
        let mut rig = Rig::new(0, 17);
        rig.insert(1);
        let (now, due) = (1 + overslept, 1 + overslept + 63);
        rig.insert(due);
        assert_eq!(rig.advance(now), [1]);
        assert_eq!(rig.advance(due - 1), []);
        assert_eq!(rig.advance(due), [due]);
    }
}

#[test]
fn c033_overslept_entries_come_in_order() {
    for origin in ORIGINS {
        let mut rig = Rig::new(0, origin);
        let mut random = Xorshift(33);
        let mut dues: Vec<u64> = (0..500).map(|_| random.below(300_000)).collect();
        for &due in &dues {
            let id = rig.insert(due.min(10));
            rig.reschedule(id, due);
        }
        dues.sort_unstable();
        assert_eq!(rig.advance(300_000), dues);
    }
}

#[test]
fn c038_an_expiry_budget_is_kept_and_now_claims_no_more() {
    for budget in [1, 2, 63, 64, 65, 100] {
        let mut rig = Rig::new(0, 0);
        for _ in 0..=2 * budget {
            rig.insert(9);
        }
        for (expired, progress) in [
            (budget, CoreProgress::Expired),
            (budget, CoreProgress::Expired),
            (1, CoreProgress::Done),
        ] {
            let mut left = limited(budget, 0);
            let (fired, got) = rig.advance_within(50, &mut left);
            assert_eq!((fired.len(), got), (expired, progress));
            assert_eq!(
                rig.wheel.now().get(),
                if got == CoreProgress::Done { 50 } else { 9 }
            );
        }
    }
    // A budget that suffices exactly is not reported as used up.
    let mut rig = Rig::new(0, 0);
    rig.insert(9);
    let (fired, progress) = rig.advance_within(50, &mut limited(1, 0));
    assert_eq!((fired, progress), (vec![9], CoreProgress::Done));
}

#[test]
fn c039_a_budget_across_slots_keeps_their_order() {
    let mut rig = Rig::new(0, 0);
    let dues = [5, 5, 5, 6, 6, 20, 20, 20];
    for due in dues.into_iter().rev() {
        rig.insert(due);
    }
    let mut all = Vec::new();
    loop {
        let (fired, progress) = rig.advance_within(30, &mut limited(2, 0));
        all.extend(fired);
        if progress == CoreProgress::Done {
            break;
        }
        assert_eq!(all.len() % 2, 0);
    }
    assert_eq!(all, dues);
}

#[test]
fn what_is_found_pushed_out_counts_against_the_budget() {
    let mut rig = Rig::new(0, 0);
    for _ in 0..3 {
        let id = rig.insert(5);
        rig.reschedule(id, 40);
    }
    let mut budget = limited(2, 0);
    assert_eq!(
        rig.advance_within(10, &mut budget),
        (vec![], CoreProgress::Expired)
    );
    assert_eq!(rig.wheel.now().get(), 5);
    assert_eq!(
        rig.advance_within(10, &mut ALL.clone()),
        (vec![], CoreProgress::Done)
    );
    assert_eq!(rig.advance(40), [40, 40, 40]);
}

#[test]
fn what_is_not_allowed_to_expire_stays_and_all_else_goes_on() {
    let mut rig = Rig::new(0, 0);
    let within = |rig: &mut Rig, target, allowed| {
        let mut budget = Budget {
            expired: 100,
            allowed,
            cascaded: 100,
        };
        rig.advance_within(target, &mut budget)
    };
    let pushed_out = rig.insert(5);
    let due = [5, 5, 5].map(|due| rig.insert(due));
    rig.insert(200);
    rig.reschedule(pushed_out, 40);
    // What was pushed out is filed again by a look that expires nothing.
    assert_eq!(within(&mut rig, 10, 0), (vec![], CoreProgress::Held));
    assert_eq!(rig.wheel.now().get(), 5);
    assert_eq!(rig.arena.filed[pushed_out as usize].get(), 40);
    assert_eq!(rig.wake(), Some(5));
    assert_eq!(within(&mut rig, 10, 0), (vec![], CoreProgress::Held));
    assert_eq!(within(&mut rig, 10, 1), (vec![5], CoreProgress::Held));
    // What is held back can be cancelled and moved.
    rig.remove(due[1]);
    rig.reschedule(due[2], 7);
    assert_eq!(within(&mut rig, 10, 0), (vec![], CoreProgress::Held));
    assert_eq!(rig.wheel.now().get(), 7);
    assert_eq!(within(&mut rig, 10, 1), (vec![7], CoreProgress::Done));
    // A slot that is all pushed out does not hold, and a cascade goes on to what is due.
    rig.reschedule(pushed_out, 199);
    assert_eq!(within(&mut rig, 150, 0), (vec![], CoreProgress::Done));
    assert_eq!(within(&mut rig, 250, 0), (vec![], CoreProgress::Held));
    assert_eq!(rig.wheel.now().get(), 199);
    assert_eq!(
        within(&mut rig, 250, 2),
        (vec![199, 200], CoreProgress::Done)
    );
    // Whatever the due ticks say.
    for due in [300, 400, 5_000] {
        rig.insert(due);
    }
    rig.wheel.make_all_due(&mut rig.arena);
    assert_eq!(
        within(&mut rig, 250, 2),
        (vec![300, 400], CoreProgress::Held)
    );
    assert_eq!(within(&mut rig, 250, 2), (vec![5_000], CoreProgress::Done));
}

#[test]
fn due_slots_come_before_cascades() {
    let mut rig = Rig::new(0, 0);
    for n in 0..200 {
        rig.insert(64 + n % 64);
    }
    rig.insert(10);
    // Without a budget for it, the wheel stops at the border of the slot to cascade.
    let mut budget = limited(1_000, 0);
    assert_eq!(
        rig.advance_within(100, &mut budget),
        (vec![10], CoreProgress::Cascade)
    );
    assert!(rig.wheel.now().get() < 64);
    // With too small a one, what was due on level 0 is served first by the next call, and `now`
    // stays in the slot that the debt is in.
    let mut budget = limited(1_000, 50);
    let (fired, progress) = rig.advance_within(100, &mut budget);
    assert_eq!((budget.cascaded, progress), (0, CoreProgress::Cascade));
    assert!(fired.len() <= 50);
    assert_eq!(rig.wake(), Some(rig.wheel.now().get()), "a debt is due now");
    let soon = rig.wheel.now().get() + 1;
    rig.insert(soon);
    let mut budget = limited(1_000, 0);
    let (fired, progress) = rig.advance_within(1_000, &mut budget);
    assert!(fired.contains(&soon));
    assert_eq!(progress, CoreProgress::Cascade);
    assert!(
        rig.wheel.now().get() < 128,
        "the debt holds `now` in its slot"
    );
    let _ = rig.advance(1_000);
    assert!(rig.wheel.is_empty());
}

#[test]
fn lower_levels_go_on_while_a_higher_one_is_in_debt() {
    let mut rig = Rig::new(0, 0);
    for n in 0..100 {
        rig.insert(4_096 + 4_000 - n);
    }
    let mut budget = limited(10, 10);
    assert_eq!(
        rig.advance_within(4_096, &mut budget),
        (vec![], CoreProgress::Cascade)
    );
    // Into a slot of level 1, which is paid for before the rest of level 2.
    rig.insert(4_096 + 70);
    let mut budget = limited(10, 1);
    let (fired, progress) = rig.advance_within(4_096 + 70, &mut budget);
    assert_eq!((fired, progress), (vec![4_096 + 70], CoreProgress::Cascade));
    // But not beyond the slot of the debt.
    rig.insert(8_192);
    let mut budget = limited(1_000, 0);
    assert_eq!(
        rig.advance_within(10_000, &mut budget),
        (vec![], CoreProgress::Cascade)
    );
    assert_eq!(rig.advance(10_000).len(), 101);
}

#[test]
fn entries_far_away_are_looked_at_within_a_budget() {
    for origin in ORIGINS {
        let mut rig = Rig::new(5, origin);
        let turn = 1_u64 << TURN;
        let near: Vec<u32> = (0..30).map(|n| rig.insert(3 * turn + n)).collect();
        let beyond: Vec<u32> = (0..30).map(|n| rig.insert(9 * turn + n)).collect();
        assert!(
            rig.wake()
                .is_some_and(|wake| wake <= 3 * turn && wake > 2 * turn)
        );
        let mut calls = 0;
        let mut fired = Vec::new();
        while fired.len() < 30 {
            let mut budget = limited(100, 7);
            let (batch, progress) = rig.advance_within(4 * turn - 1, &mut budget);
            fired.extend(batch);
            calls += 1;
            assert!(progress == CoreProgress::Cascade || fired.len() == 30);
            // Removal from both lists, while the look is unfinished.
            if calls == 2 {
                rig.remove(beyond[29]);
                rig.remove(beyond[0]);
                rig.reschedule(beyond[1], 4 * turn + 1);
                rig.reschedule(beyond[28], 4 * turn + 1);
            }
        }
        assert!(calls > 8);
        assert!(near.iter().all(|&id| !rig.is_filed(id)));
        assert_eq!(rig.advance(4 * turn), []);
        assert_eq!(rig.advance(4 * turn + 1).len(), 2);
        assert_eq!(rig.advance(20 * turn).len(), 26);
    }
}

#[test]
fn far_entries_of_the_turn_jumped_into_come_in_order() {
    let turn = 1 << TURN;
    let mut rig = Rig::new(0, 0);
    let dues = [
        5 * turn + 9,
        5 * turn + 70_000,
        5 * turn + 1,
        5 * turn + (1 << 30),
        2 * turn + 9,
    ];
    for due in dues {
        rig.insert(due);
    }
    let mut fired = rig.advance(6 * turn - 1);
    assert_eq!(fired.remove(0), 2 * turn + 9);
    assert!(fired.is_sorted() && fired.len() == 4);
}

#[test]
fn far_entries_are_pulled_in_and_pushed_out() {
    let turn = 1 << TURN;
    for origin in ORIGINS {
        let mut rig = Rig::new(0, origin);
        let moved = rig.insert(10 * turn);
        let other = rig.insert(3 * turn);
        rig.reschedule(moved, 3 * turn - 1);
        rig.reschedule(other, 7 * turn);
        assert_eq!(rig.advance(3 * turn - 2), []);
        assert_eq!(rig.advance(3 * turn - 1), [3 * turn - 1]);
        rig.reschedule(other, 5 * turn + 3);
        assert_eq!(rig.advance(5 * turn + 2), []);
        assert_eq!(rig.advance(5 * turn + 3), [5 * turn + 3]);
    }
}

#[test]
fn everything_made_due_expires_at_once() {
    for origin in ORIGINS {
        let mut rig = Rig::new(1_000, origin);
        let mut ids: Vec<u32> = borders()
            .iter()
            .map(|&d| rig.insert(1_000_u64.saturating_add(d)))
            .collect();
        // With a drain half done.
        let half = limited(1, 0);
        rig.insert(1_000);
        let (first, progress) = rig.advance_within(1_000, &mut half.clone());
        assert_eq!((first, progress), (vec![1_000], CoreProgress::Expired));
        ids.retain(|&id| rig.is_filed(id));
        rig.wheel.make_all_due(&mut rig.arena);
        rig.check();
        assert_eq!(rig.wake(), Some(1_000));
        let removed = ids.swap_remove(3);
        rig.remove(removed);
        let late = rig.insert(2_000);
        let (fired, progress) = rig.advance_within(1_000, &mut ALL.clone());
        assert_eq!((fired.len(), progress), (ids.len() + 1, CoreProgress::Done));
        assert!(
            rig.is_filed(late),
            "what is inserted afterwards waits for its tick"
        );
        assert_eq!(rig.advance(2_000), [2_000]);
    }
    let mut rig = Rig::new(0, 0);
    rig.wheel.make_all_due(&mut rig.arena);
    assert_eq!(rig.wake(), None);
    assert_eq!(rig.advance(5), []);
}

#[test]
fn an_unfinished_drain_can_be_removed_from() {
    // c147
    let mut rig = Rig::new(0, 0);
    let ids: Vec<u32> = (0..10).map(|_| rig.insert(3)).collect();
    let _ = rig.advance_within(3, &mut limited(2, 0));
    for &id in &ids[3..9] {
        rig.remove(id);
    }
    // Filed again into the slot that is being drained, and out of it again.
    let again = rig.insert(3);
    let other = rig.insert(2);
    rig.remove(again);
    rig.reschedule(ids[9], 7);
    assert_eq!(
        rig.advance_within(3, &mut ALL.clone()),
        (vec![3, 2], CoreProgress::Done)
    );
    assert!(!rig.is_filed(other));
    rig.remove(ids[9]);
    assert_eq!(rig.wake(), None);
    // The last one of a drain removed ends it.
    let last: Vec<u32> = (0..2).map(|_| rig.insert(4)).collect();
    let _ = rig.advance_within(4, &mut limited(1, 0));
    rig.remove(
        *last
            .iter()
            .find(|&&id| rig.is_filed(id))
            .expect("one is left"),
    );
    assert_eq!(rig.wake(), None);
}

#[test]
fn c141_an_empty_wheel_has_no_wake_up_and_skips() {
    let mut rig = Rig::new(7, 3);
    assert_eq!(rig.wake(), None);
    assert_eq!(rig.advance(1 << 60), []);
    rig.wheel.catch_up(Tick::new(u64::MAX - 10));
    rig.wheel.catch_up(Tick::new(5));
    assert_eq!(rig.wheel.now().get(), u64::MAX - 10);
    rig.insert(u64::MAX - 9);
    assert_eq!(rig.wake(), Some(u64::MAX - 9));
}

#[test]
fn c143_the_earlier_of_two_levels_wakes() {
    let mut rig = Rig::new(60, 0);
    rig.insert(70);
    assert_eq!(rig.wake(), Some(64), "the cascade, no leaf before it");
    rig.insert(62);
    assert_eq!(rig.wake(), Some(62), "the leaf, before the cascade");
}

#[test]
fn c144_a_whole_turn_away_is_not_now() {
    for level in 0..LEVELS as u32 {
        let turn = 1 << (DIGIT * (level + 1));
        for start in [0, 1, 5_000_000_000] {
            let mut rig = Rig::new(start, 0);
            rig.insert(start + turn);
            assert!(rig.wake().is_some_and(|wake| wake > start));
            assert_eq!(rig.advance(start), []);
            assert_eq!(rig.advance(start + turn - 1), []);
            assert_eq!(rig.advance(start + turn), [start + turn]);
        }
    }
}

#[test]
fn c146_an_earlier_insert_wakes_earlier_and_a_later_one_does_not() {
    let mut rig = Rig::new(0, 0);
    rig.insert(50);
    rig.insert(60);
    assert_eq!(rig.wake(), Some(50));
    rig.insert(40);
    assert_eq!(rig.wake(), Some(40));
}

#[test]
fn c147_cancelling_the_earliest_wakes_once_at_most() {
    let mut rig = Rig::new(0, 0);
    for due in [40, 5_000, 1 << 40] {
        let id = rig.insert(due);
        rig.insert(due * 2);
        rig.remove(id);
        let wake = rig.wake().expect("one is left");
        assert_eq!(rig.advance(wake).len(), usize::from(wake == due * 2));
        assert_ne!(rig.wake(), Some(wake), "not repeated");
        let _ = rig.advance(due * 2);
        assert_eq!(rig.wake(), None);
    }
}

#[test]
fn c145_random_calls_keep_every_invariant() {
    // `Rig` compares the next wake-up with a walk over all entries after every call.
    for seed in 1..=40 {
        let mut random = Xorshift(seed * 0x9e37_79b9);
        let start = STARTS[random.below(7) as usize] >> random.below(2);
        let mut rig = Rig::new(start, ORIGINS[random.below(6) as usize]);
        let mut ids: Vec<u32> = Vec::new();
        for _ in 0..300 {
            let now = rig.wheel.now().get();
            match random.below(10) {
                0..4 => ids.push(rig.insert(now.saturating_add(random.distance()))),
                4 if !ids.is_empty() => {
                    let n = random.below(ids.len() as u64) as usize;
                    rig.remove(ids.swap_remove(n));
                }
                5..7 if !ids.is_empty() => {
                    let n = random.below(ids.len() as u64) as usize;
                    rig.reschedule(ids[n], now.saturating_add(random.distance()));
                }
                _ => {
                    let mut budget = Budget {
                        expired: random.below(4) as usize,
                        allowed: random.below(6) as usize,
                        cascaded: random.below(4) as usize,
                    };
                    let to = now.saturating_add(random.distance());
                    let (fired, progress) = rig.advance_within(to, &mut budget);
                    assert!(fired.iter().all(|&due| due <= to), "never early");
                    ids.retain(|&id| rig.is_filed(id));
                    if progress == CoreProgress::Done {
                        assert!(
                            ids.iter().all(|&id| rig.arena.due(id).get() > to),
                            "none lost"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn large_buffers_are_left_to_the_owner() {
    let mut wheel = CoreWheel::new(Tick::ZERO, 0);
    let count = 10_000;
    let mut arena = Arena {
        due: vec![Tick::new(100); count],
        wheel_position: vec![(WheelPosition::NONE, 0); count],
        filed: vec![Tick::ZERO; count],
    };
    for id in 0..count as u32 {
        wheel.insert(id, Tick::new(100), &mut arena);
    }
    assert!(wheel.take_spare().is_empty());
    let _ = wheel.advance(Tick::new(100), &mut ALL.clone(), &mut arena, &mut |_, _| {});
    // The buffer of the slot of level 1, that of the slot of level 0, and the smaller ones that the
    // latter slot had before.
    let spare = wheel.take_spare();
    let all = spare.iter().filter(|buffer| buffer.capacity() >= count);
    assert_eq!(all.count(), 2);
    assert!(spare.len() > 10, "{}", spare.len());
    assert!(wheel.is_empty() && wheel.take_spare().is_empty());
}
