//! The run: children are filled, then asked for one round after the other, so that whatever the
//! machine does meanwhile hits all systems alike.

mod choice;
mod filling;
mod other_build;
mod plan;
mod preset;
mod series;

use std::io;
use std::time::{Duration, Instant};

pub(crate) use choice::Options;
use choice::{amount, candidates, cases, has_other_build, is_chosen, is_too_many_for, part, plan};
use filling::{Answer, Candidate, Filling};
use plan::{Plan, Point, point};
use series::{Round, Series};

use crate::figures;
use crate::figures::row;
use crate::figures::short;
use crate::machine::{self, Machine, Version};
use crate::mode::{self, Borders, Mode};
use crate::systems;
use crate::wire::Request;
use crate::workload::{Cased, Children, Form, Workload};
use crate::{foreign, pingpong, workloads};

/// If a ping-pong takes this many times as long as an ordinary one, the machine is in a slow mode.
const SLOW: f64 = 2.0;
/// So long a round waits at most for others to leave the machine alone.
const PATIENCE: Duration = Duration::from_secs(10);
/// So long a system that was stopped has to do what it missed.
const CATCH_UP: Duration = Duration::from_secs(3);
/// So many seconds a run may take longer in all because others keep the machine busy: waits, and rounds
/// that are done again. The quick form has to end soon on a busy machine, too.
const DELAY: [u64; 3] = [300, 20, 0];
/// So many seconds a run waits in all for the mode that targets are judged in, the rounds included that it
/// does then.
const NEAR_TIME: [u64; 3] = [300, 20, 0];
/// So long a round waits for it at most: the mode changes within seconds. Less if it was never
/// seen.
const NEAR_PATIENCE: Duration = Duration::from_secs(10);
const NEVER_SEEN_PATIENCE: Duration = Duration::from_secs(2);

/// Runs what the options ask for, and reports.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    options.made.check()?;
    let (drivers, mut lines, skipped) = prepare_drivers(options);
    for build in options.builds() {
        let mut chosen = workloads::ALL.iter().filter(|w| is_chosen(options, w));
        if chosen.any(|workload| has_other_build(options, workload, build))
            && let Err(error) = build.prepare()
        {
            let line = format!("systems{}: skipped, {error}", build.suffix());
            complain!("         {line}");
            lines.push(line);
        }
    }
    let mut run = Run {
        options,
        plan: plan(options, &skipped),
        began: Instant::now(),
        pings_ns: Vec::new(),
        seed: 1,
        delay_left: Duration::from_secs(DELAY[options.form as usize]),
        skipped,
        near_left: Duration::from_secs(NEAR_TIME[options.form as usize]),
        cuts: Vec::new(),
    };
    let versions = machine::versions().into_iter().chain(drivers).collect();
    let mut found = row::Run::begin(options.form, versions);
    (found.borders, found.skipped) = (Some(options.borders), lines);
    complain!("{}", run.plan.ahead());
    for _ in 0..3 {
        run.wait_for_calm();
        run.ping();
    }
    while let Some(next) = run.plan.next() {
        match run.workload(&next) {
            Ok(all) => found.rows.extend(all.iter().flat_map(Series::rows)),
            // An error ends this workload alone. The figures of the others are kept.
            Err(error) => {
                let failure = format!("{}: {error}", point(next.workload, next.keys));
                complain!("benches: {failure}");
                found.failures.push(failure);
            }
        }
        found.seconds = run.began.elapsed().as_secs_f64();
        found.ping_ns = run.ordinary_ping_ns();
        found.cuts.clone_from(&run.cuts);
        options.made.keep(&found)?;
    }
    for left_out in std::mem::take(&mut run.plan.left) {
        let what = point(left_out.workload, left_out.keys);
        run.cut(format!("{what} is left out: there is no time for it"));
    }
    found.cuts = run.cuts;
    if found.rows.is_empty() && found.failures.is_empty() {
        let error = "none of these systems does any of these workloads; see --help";
        return Err(io::Error::other(error));
    }
    options.made.keep(&found)?;
    figures::print(&found);
    options.made.publish(&found)?;
    found.outcome()
}

/// Prints how long round trips between cores take, again and again for `time`.
pub(crate) fn modes(time: Duration, borders: Borders) -> io::Result<()> {
    let began = Instant::now();
    let mut pings_ns = Vec::new();
    while began.elapsed() < time {
        match pingpong::round_trip_ns() {
            Some(ns) => pings_ns.push(ns),
            None if pings_ns.is_empty() => return Err(io::Error::other("there is one core only")),
            None => (),
        }
    }
    let differs = |two: &[f64]| borders.mode(two[0]) != borders.mode(two[1]);
    let changes = pings_ns.windows(2).filter(|two| differs(two)).count();
    say!("{}\n{}", Machine::here().line(), borders.in_words());
    let (count, seconds) = (pings_ns.len(), began.elapsed().as_secs_f64());
    say!("{count} ping-pongs in {seconds:.0} s, {changes} changes of the mode");
    say!("{}", mode::histogram(&pings_ns, borders).trim_end());
    Ok(())
}

/// Compiles the drivers that this run needs. Returns their versions, a line for each driver that
/// cannot run, and the names of those.
fn prepare_drivers(options: &Options) -> (Vec<Version>, Vec<String>, Vec<&'static str>) {
    let workloads = workloads::ALL.iter().filter(|w| is_chosen(options, w));
    // At the least number of keys a point has all of its peers.
    let candidates = workloads.flat_map(|workload| candidates(options, &[], workload, 0));
    let drivers = candidates.filter_map(|candidate| candidate.entry.driver);
    let mut drivers: Vec<_> = drivers.collect();
    drivers.sort_by_key(|driver| driver.name);
    drivers.dedup_by_key(|driver| driver.name);
    let (mut versions, mut lines, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for driver in drivers {
        match foreign::prepare(driver) {
            Ok(found) => versions.extend(found),
            Err(trouble) => {
                complain!("         {}", trouble.line(driver));
                lines.push(trouble.line(driver));
                skipped.push(driver.name);
            }
        }
    }
    versions.sort_by(|one, other| one.name.cmp(&other.name));
    versions.dedup_by(|one, other| one.name == other.name);
    (versions, lines, skipped)
}

struct Run<'a> {
    options: &'a Options,
    plan: Plan,
    began: Instant,
    /// All so far.
    pings_ns: Vec<f64>,
    seed: u64,
    delay_left: Duration,
    near_left: Duration,
    /// What was done less often than planned.
    cuts: Vec<String>,
    /// Names of systems that cannot run here.
    skipped: Vec<&'static str>,
}

impl Run<'_> {
    /// Says that something was cut, and keeps it for the report.
    fn cut(&mut self, cut: String) {
        complain!("         cut: {cut}");
        self.cuts.push(cut);
    }

    fn workload(&mut self, next: &Point) -> io::Result<Vec<Series>> {
        let Point { workload, keys, .. } = *next;
        let what = point(workload, keys);
        for system in systems::ALL {
            let takes_part = part(self.options, workload, keys).is_none_or(|p| p.has(system.name));
            let serves = system.serves(workload).is_some() && takes_part;
            if serves && is_too_many_for(system, self.options, keys) {
                let (name, most) = (system.name, short(system.most_keys));
                let why = format!("it has {most} keys at most unless it is named");
                self.cut(format!("{what}: {name} is left out, {why}"));
            }
        }
        self.name_left_out(workload, keys);
        let mut each = EachSystem {
            workload,
            keys,
            candidates: candidates(self.options, &self.skipped, workload, keys),
            children: Vec::new(),
            series: Vec::new(),
        };
        if workload.children != Children::Fresh {
            for candidate in &each.candidates {
                let child = Filling::start(candidate, workload, keys, self.options.form)?;
                if workload.children == Children::Kept {
                    child.pause();
                }
                each.children.push(child);
            }
        }
        let mut all = Vec::new();
        let planned = self.options.rounds();
        let cases = cases(self.options, workload, keys);
        for (number, case) in cases.iter().enumerate() {
            // The remaining cases of the point share the rest of its time.
            let until = next.until.map(|until| {
                let left = until.saturating_duration_since(Instant::now());
                Instant::now() + left / (cases.len() - number) as u32
            });
            let fits = |round| until.is_none_or(|until| Instant::now() + round <= until);
            each.begin(case, amount(self.options, workload));
            if workload.children == Children::Kept && workload.warm_up {
                for child in &mut each.children {
                    // Unmeasured: caches, branch predictors, page tables.
                    let request = self.request(workload, case, 4);
                    child.go_on();
                    self.let_catch_up();
                    child.ask(&request)?;
                    child.pause();
                }
            }
            let began = Instant::now();
            for round in 0..planned {
                if round > 0 && !fits(began.elapsed() / round as u32) {
                    let why = format!("{round} rounds instead of {planned}");
                    let why = format!("{why}, the time does not suffice");
                    self.cut(format!("{what}, {}: {why}", case.name));
                    break;
                }
                self.progress(next, case, round);
                self.round_of_all(&mut each, case, round, |_| true)?;
            }
            if case.threads > 1 && workload.children != Children::Together {
                self.more_near_rounds(&mut each, case, fits)?;
            }
            all.append(&mut each.series);
        }
        Ok(all)
    }

    /// Names the peers that the table of targets does without at this point.
    fn name_left_out(&mut self, workload: &Workload, keys: u64) {
        let Some(part) = part(self.options, workload, keys) else {
            return;
        };
        let serving = systems::ALL
            .iter()
            .filter(|system| system.serves(workload).is_some() && !part.has(system.name));
        let names: Vec<&str> = serving.map(|system| system.name).collect();
        if !names.is_empty() {
            let what = point(workload, keys);
            let names = names.join(", ");
            self.cut(format!("{what}: for lack of time without {names}"));
        }
    }

    /// One round of all systems for which `wanted` holds. The same seed for all; the order turns
    /// round.
    fn round_of_all(
        &mut self,
        each: &mut EachSystem,
        case: &Cased,
        round: usize,
        wanted: impl Fn(&Series) -> bool,
    ) -> io::Result<()> {
        let workload = each.workload;
        let request = self.request(workload, case, 1);
        let form = self.options.form;
        let batches = workloads::batches(workload, &request);
        if workload.children == Children::Together {
            self.wait_for_calm();
            for child in &mut each.children {
                child.send(&request)?;
            }
            for (child, series) in each.children.iter_mut().zip(&mut each.series) {
                series.rounds.push(Round {
                    reply: child.hear()?,
                    mode: (case.threads > 1).then_some(Mode::Unknown),
                    kept_disturbed: false,
                });
            }
            return Ok(());
        }
        let count = each.series.len();
        for turn in 0..count {
            let back = count - 1 - turn;
            let at = if round.is_multiple_of(2) { turn } else { back };
            let series = &mut each.series[at];
            if !wanted(series) {
                continue;
            }
            if workload.children == Children::Fresh {
                self.wait_for_calm();
                self.round(series, || {
                    let candidate = &each.candidates[at];
                    let mut child = Filling::start(candidate, workload, each.keys, form)?;
                    child.measure(&request, batches)
                })?;
            } else {
                let child = &mut each.children[at];
                child.go_on();
                self.let_catch_up();
                self.round(series, || child.measure(&request, batches))?;
                child.pause();
            }
        }
        Ok(())
    }

    /// Repeats rounds while the machine is in the mode that targets are judged in, until each
    /// system has as many of that mode as are planned. It waits for the mode only for a bounded
    /// time, and says so if it does not come.
    fn more_near_rounds(
        &mut self,
        each: &mut EachSystem,
        case: &Cased,
        fits: impl Fn(Duration) -> bool,
    ) -> io::Result<()> {
        let (began, rounds) = (Instant::now(), self.options.rounds());
        let what = format!("{}, {}", point(each.workload, each.keys), case.name);
        for round in 0..rounds {
            let lacks = |series: &Series| series.rounds_in(Mode::Near) < rounds;
            let lacking = each.series.iter().filter(|series| lacks(series)).count();
            let mut done = each.series.iter().flat_map(|series| &series.rounds);
            if lacking == 0 || done.all(|round| round.mode == Some(Mode::Unknown)) {
                return Ok(());
            }
            let last = began.elapsed() / (round as u32).max(1);
            if !fits(last) || !self.wait_for_near() {
                let why = "the near mode does not come in time";
                complain!("         {what}: {why} for {lacking} systems");
                return Ok(());
            }
            complain!("         {what}: once more for {lacking} systems, near");
            let before = Instant::now();
            self.round_of_all(each, case, round, lacks)?;
            self.near_left = self.near_left.saturating_sub(before.elapsed());
        }
        Ok(())
    }

    /// Waits until the ping-pong shows the near mode. Whether it did.
    fn wait_for_near(&mut self) -> bool {
        let borders = self.options.borders;
        let is_near = |ns: f64| borders.mode(ns) == Mode::Near;
        let patience = match self.pings_ns.iter().any(|ns| is_near(*ns)) {
            true => NEAR_PATIENCE,
            false => NEVER_SEEN_PATIENCE,
        };
        let began = Instant::now();
        let mut near = false;
        while !near && began.elapsed() < patience.min(self.near_left) {
            near = self.ping().is_some_and(is_near);
            if !near {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.near_left = self.near_left.saturating_sub(began.elapsed());
        near
    }

    fn progress(&self, next: &Point, case: &Cased, round: usize) {
        let (so_far, ahead) = (self.plan.so_far(), self.plan.ahead());
        let what = format!("{}, {}", point(next.workload, next.keys), case.name);
        let (round, rounds) = (round + 1, self.options.rounds());
        complain!("{so_far:>14}  {what}: round {round} of {rounds}; then {ahead}");
    }

    fn request(&mut self, workload: &Workload, case: &Cased, divisor: u64) -> Request {
        self.seed += 1;
        Request {
            case: case.number,
            threads: case.threads,
            amount: amount(self.options, workload) / divisor,
            seed: self.seed,
        }
    }

    fn ping(&mut self) -> Option<f64> {
        let ns = pingpong::round_trip_ns();
        self.pings_ns.extend(ns);
        ns
    }

    /// The median so far. Not less: on a shared core a trip takes a third of what it takes
    /// otherwise.
    fn ordinary_ping_ns(&self) -> Option<f64> {
        let mut sorted = self.pings_ns.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// What a child missed while it stood still it does before its round. Not at the expense of
    /// what is left for others.
    fn let_catch_up(&mut self) {
        if self.options.form == Form::Smoke {
            return;
        }
        if machine::wait_for_calm(CATCH_UP) >= CATCH_UP {
            self.wait_for_calm();
        }
    }

    fn wait_for_calm(&mut self) {
        let waited = machine::wait_for_calm(PATIENCE.min(self.delay_left));
        self.delay_left = self.delay_left.saturating_sub(waited);
    }

    /// One round that counts, and before it those that the machine disturbed: on average one for
    /// each that counts, and only while there is time left for it. The machine is calm when it
    /// begins.
    ///
    /// With several threads a batch in which the mode changed never counts, so there may be none.
    fn round(
        &mut self,
        series: &mut Series,
        mut ask: impl FnMut() -> io::Result<Vec<Answer>>,
    ) -> io::Result<()> {
        loop {
            let began = Instant::now();
            let answers = ask()?;
            let may_repeat = series.discarded < self.options.rounds() && !self.delay_left.is_zero();
            let mut counts = false;
            for answer in answers {
                counts |= self.batch(series, answer, may_repeat);
            }
            if counts || !may_repeat {
                return Ok(());
            }
            self.delay_left = self.delay_left.saturating_sub(began.elapsed());
            self.wait_for_calm();
        }
    }

    /// A round, or a part of one, with the ping-pongs around it. Whether it counts.
    fn batch(&mut self, series: &mut Series, answer: Answer, may_repeat: bool) -> bool {
        let Answer { reply, pings_ns } = answer;
        self.pings_ns.extend(pings_ns.into_iter().flatten());
        let apart = series.case.threads > 1;
        let mode = self.options.borders.of_round(pings_ns);
        let mixed = apart && mode.is_none();
        // Where rounds are kept apart by mode, a slow mode disturbs nothing.
        let slow = !apart && self.is_slow(pings_ns);
        let disturbed = slow || reply.disturbed;
        if mixed || disturbed && may_repeat {
            series.mixed += u64::from(mixed);
            series.slow += u64::from(slow);
            series.disturbed += u64::from(disturbed && !slow && !mixed);
            series.discarded += 1;
            return false;
        }
        series.rounds.push(Round {
            reply,
            mode: mode.filter(|_| apart),
            kept_disturbed: disturbed,
        });
        true
    }

    fn is_slow(&self, pings_ns: Option<[f64; 2]>) -> bool {
        let slower = pings_ns.map(|[before, after]| before.max(after));
        let both = slower.zip(self.ordinary_ping_ns());
        both.is_some_and(|(ping, ordinary)| ping > SLOW * ordinary)
    }
}

/// All systems at one point, in one order.
struct EachSystem {
    workload: &'static Workload,
    keys: u64,
    candidates: Vec<Candidate>,
    /// Empty if every round has a new one.
    children: Vec<Filling>,
    /// Of the current case.
    series: Vec<Series>,
}

impl EachSystem {
    fn begin(&mut self, case: &Cased, amount: u64) {
        let series = |candidate: &Candidate| Series {
            workload: self.workload,
            case: case.clone(),
            keys: self.keys,
            system: candidate.name(),
            amount,
            rounds: Vec::new(),
            discarded: 0,
            mixed: 0,
            slow: 0,
            disturbed: 0,
        };
        self.series = self.candidates.iter().map(series).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Command as Parsed};
    use crate::figures::Row;
    use crate::wire::Reply;

    fn options(line: &str) -> Options {
        match cli::parse(line.split_whitespace().map(str::to_owned)) {
            Ok(Parsed::Run(options)) => options,
            other => panic!("no run: {other:?}"),
        }
    }

    fn run(options: &Options) -> Run<'_> {
        Run {
            options,
            plan: plan(options, &[]),
            skipped: Vec::new(),
            began: Instant::now(),
            pings_ns: vec![80.0; 8],
            seed: 1,
            delay_left: Duration::from_secs(60),
            near_left: Duration::ZERO,
            cuts: Vec::new(),
        }
    }

    /// Makes the rows of these rounds of touches with `threads` threads: for each batch of a round
    /// its figure and the ping-pongs around it. Returns them with the number of rounds that were
    /// done again.
    fn rows_of(threads: usize, rounds: &[&[(f64, f64, f64)]]) -> (Vec<Row>, usize) {
        let options = options("--only W2 --rounds 3");
        let workload = workloads::find("W2").expect("a workload");
        let candidates = candidates(&options, &[], workload, 1_000);
        let mut each = EachSystem {
            workload,
            keys: 1_000,
            candidates: candidates[..1].to_vec(),
            children: Vec::new(),
            series: Vec::new(),
        };
        each.begin(&workload.cases_with(&[threads])[0], 0);
        let answer = |(figure, before, after): &(f64, f64, f64)| Answer {
            reply: Reply {
                figures: vec![Some(*figure)],
                ..Reply::default()
            },
            pings_ns: Some([*before, *after]),
        };
        let mut rounds = rounds.iter();
        let ask = || {
            let round = rounds.next().expect("not asked once more");
            Ok(round.iter().map(answer).collect())
        };
        let series = &mut each.series[0];
        run(&options).round(series, ask).expect("nothing fails");
        (series.rows(), series.discarded)
    }

    fn typical(row: &Row) -> Option<f64> {
        row.first().map(|spread| spread.typical)
    }

    #[test]
    fn a_round_in_which_the_mode_changed_is_repeated_and_not_counted() {
        let rounds = [(1.0, 80.0, 300.0), (2.0, 300.0, 80.0), (3.0, 310.0, 290.0)];
        let rounds = rounds.each_ref().map(std::slice::from_ref);
        let (rows, discarded) = rows_of(2, &rounds);
        assert_eq!((rows.len(), rows[0].rounds()), (1, 1));
        assert_eq!((rows[0].mixed, discarded), (2, 2));
        assert_eq!(rows[0].mode, Some(Mode::Far));
        assert_eq!(typical(&rows[0]), Some(3.0));
        // At most as many as there are rounds.
        let (rows, _) = rows_of(2, &[rounds[0]; 4]);
        assert_eq!((rows.len(), rows[0].rounds(), rows[0].mixed), (1, 0, 4));
        assert!(!rows[0].is_judged());
    }

    #[test]
    fn batches_of_a_round_count_each_in_its_mode() {
        let batches: &[_] = &[
            (1.0, 80.0, 81.0),
            (2.0, 81.0, 300.0),
            (3.0, 300.0, 300.0),
            (4.0, 80.0, 80.0),
        ];
        let (rows, _) = rows_of(2, &[batches]);
        let modes = rows.iter().map(|row| (row.mode, row.rounds(), row.mixed));
        let expected = [(Some(Mode::Near), 2, 1), (Some(Mode::Far), 1, 0)];
        assert!(modes.eq(expected));
        assert_eq!(typical(&rows[0]), Some(2.5));
    }

    #[test]
    fn rounds_with_one_thread_have_no_mode() {
        let (rows, _) = rows_of(1, &[&[(1.0, 80.0, 120.0)]]);
        assert_eq!((rows.len(), rows[0].rounds(), rows[0].mode), (1, 1, None));
        let (rows, _) = rows_of(1, &[&[(1.0, 80.0, 300.0)], &[(2.0, 80.0, 80.0)]]);
        assert_eq!((rows[0].slow, rows[0].mixed), (1, 0));
    }

    #[test]
    fn the_targets_have_points_and_peers_of_their_own() {
        let options = options("--targets --system tourbillon,heap,DelayQueue,netty");
        assert_eq!(options.rounds(), 5);
        let names = |workload: &str, keys| -> Vec<String> {
            let workload = workloads::find(workload).expect("a workload");
            let candidates = candidates(&options, &[], workload, keys);
            candidates.iter().map(Candidate::name).collect()
        };
        assert_eq!(names("W5", 0), ["tourbillon", "DelayQueue"]);
        assert_eq!(names("W1k", 10_000_000), ["tourbillon", "heap", "netty"]);
        let of = |name| workloads::find(name).expect("a workload");
        assert_eq!(cases(&options, of("W8"), 10_000_000).len(), 1);
        assert_eq!(amount(&options, of("W2")), 1_000_000);
        assert!(is_chosen(&options, of("W1")) && !is_chosen(&options, of("churn")));
        let plan = plan(&options, &[]);
        assert_eq!(plan.left.len(), 22);
        let limit = preset::TIME.as_secs_f64();
        assert!(plan.estimate() < limit, "five rounds of each");
    }

    #[test]
    fn what_a_point_does_without_is_named() {
        let options = options("--targets");
        let mut run = run(&options);
        run.name_left_out(workloads::find("W2").expect("a workload"), 10_000_000);
        let words = run.cuts.join("\n");
        let names = words.strip_prefix("W2 10 M: for lack of time without ");
        let names = names.expect(&words);
        assert!(names.contains("go") && !names.contains("heap"), "{words}");
    }

    #[test]
    fn ours_are_set_up_in_every_way_and_peers_once() {
        let options = options("--only W2 --system tourbillon,heap --shards 1,2");
        let workload = workloads::find("W2").expect("a workload");
        let candidates = candidates(&options, &[], workload, 1_000);
        let names = candidates.iter().map(Candidate::name);
        let expected = ["tourbillon, 1 shards", "tourbillon, 2 shards", "heap"];
        assert!(names.eq(expected));
    }
}
