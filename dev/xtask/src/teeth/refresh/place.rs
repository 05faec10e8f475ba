//! Finds the place of a hunk by the similarity of its code, also in other files.
//!
//! A window of the old file around the hunk is aligned with each candidate file, token by token,
//! as biologists align sequences (Smith and Waterman). An edit moves along with the tokens that it
//! removes or lies between.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::patch::{Edit, Files};
use super::renames::{is_keyword, texts};
use super::tokens::{self, Kind, Token};

/// The numbers of lines of the old file around a hunk that help to find its place, each with the
/// percentage of a perfect score at which a place counts as found. A hunk alone resembles more
/// places.
const WINDOWS: [(usize, i32); 3] = [(12, 45), (4, 60), (0, 75)];
/// The percentage of the best score at which a second place makes the first one doubtful.
const DOUBTFUL: i32 = 85;

const WORD: i32 = 6;
const PUNCTUATION: i32 = 2;
const SKIPPED: i32 = -1;
const SUBSTITUTED: i32 = 0;

/// Replaces some bytes of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) span: Range<usize>,
    pub(crate) text: String,
}

/// The place of a hunk.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) path: String,
    pub(crate) changes: Vec<Change>,
}

/// Moves the edits of one hunk from an old file to the candidate file that resembles it most.
///
/// `hunk` are the lines of the old file that the hunk covers. Where two places are about as good,
/// `expected` is the file that decides.
pub(crate) fn transport(
    old: &str,
    hunk: &Range<usize>,
    edits: &[Edit],
    candidates: &Files,
    expected: Option<&str>,
) -> Result<Placed, String> {
    let mut reason = String::new();
    for (around, enough) in WINDOWS {
        let window = Window::new(old, hunk, around);
        match window.transport(enough, edits, candidates, expected) {
            Ok(placed) => return Ok(placed),
            Err(error) if reason.is_empty() => reason = error,
            Err(_) => {}
        }
    }
    Err(reason)
}

/// The code of a file.
struct Source<'a> {
    text: &'a str,
    code: Vec<Token>,
    texts: Vec<&'a str>,
}

impl<'a> Source<'a> {
    fn new(text: &'a str) -> Self {
        let code = tokens::code(text);
        Source {
            text,
            texts: texts(text, &code),
            code,
        }
    }

    fn weight(&self, at: usize) -> i32 {
        match self.code[at].kind {
            Kind::Word => WORD,
            _ => PUNCTUATION,
        }
    }

    fn is_name(&self, at: usize) -> bool {
        self.code[at].kind == Kind::Word && !is_keyword(self.texts[at])
    }

    fn start_of_line(&self, byte: usize) -> usize {
        self.text[..byte].rfind('\n').map_or(0, |at| at + 1)
    }

    /// The byte after the newline.
    fn end_of_line(&self, byte: usize) -> usize {
        let rest = &self.text[byte..];
        rest.find('\n').map_or(self.text.len(), |at| byte + at + 1)
    }

    fn begins_line(&self, at: usize) -> bool {
        let start = self.code[at].span.start;
        at.checked_sub(1)
            .is_none_or(|before| self.code[before].span.end <= self.start_of_line(start))
    }

    fn ends_line(&self, at: usize) -> bool {
        let end = self.code[at].span.end;
        let after = self.code.get(at + 1);
        after.is_none_or(|after| after.span.start >= self.end_of_line(end))
    }

    fn indent(&self, byte: usize) -> usize {
        let line = &self.text[self.start_of_line(byte)..];
        line.len() - line.trim_start_matches(' ').len()
    }
}

/// A stretch of the old file around a hunk.
struct Window<'a> {
    source: Source<'a>,
    /// Where each line of the old file begins in the window, and where the last one ends.
    lines: Vec<usize>,
    first_line: usize,
    perfect: i32,
}

impl<'a> Window<'a> {
    fn new(old: &'a str, hunk: &Range<usize>, around: usize) -> Self {
        let mut starts = vec![0];
        starts.extend(old.match_indices('\n').map(|(at, _)| at + 1));
        if !old.ends_with('\n') {
            starts.push(old.len());
        }
        let count = starts.len() - 1;
        let first_line = hunk.start.saturating_sub(around);
        let last_line = (hunk.end + around).min(count);
        let text = &old[starts[first_line]..starts[last_line]];
        let lines = &starts[first_line..=last_line];
        let source = Source::new(text);
        Window {
            perfect: (0..source.code.len()).map(|at| source.weight(at)).sum(),
            lines: lines.iter().map(|at| at - starts[first_line]).collect(),
            source,
            first_line,
        }
    }

    fn transport(
        &self,
        enough: i32,
        edits: &[Edit],
        candidates: &Files,
        expected: Option<&str>,
    ) -> Result<Placed, String> {
        let mut found: Vec<(i32, &str, Alignment)> = Vec::new();
        for (path, text) in candidates {
            let file = Source::new(text);
            if !self.may_lie_in(&file) {
                continue;
            }
            // The second alignment shows whether another place in the same file is about as good.
            let best = align(&self.source, &file, None);
            let second = align(&self.source, &file, best.span().as_ref());
            for alignment in [best, second] {
                found.push((alignment.score, path, alignment));
            }
        }
        let is_expected = |path: &str| Some(path) == expected;
        found.sort_by_key(|(score, path, _)| (-score, !is_expected(path)));
        let best_score = found.first().map_or(0, |found| found.0);
        if best_score * 100 < self.perfect * enough {
            return Err(match (found.first(), expected) {
                (Some((_, path, _)), _) => format!("{path} is the most alike, and not enough"),
                (None, Some(path)) => format!("nothing in {path} or elsewhere is alike"),
                (None, None) => "nothing anywhere is alike".to_owned(),
            });
        }
        // Keep the places that are about as good as the best one. The expected file wins among
        // them.
        let mut good = found;
        good.retain(|(score, ..)| score * 100 >= best_score * DOUBTFUL);
        if good.iter().any(|(_, path, _)| is_expected(path)) {
            good.retain(|(_, path, _)| is_expected(path));
        }
        if let [(_, first, _), (_, second, _), ..] = &good[..] {
            return Err(format!(
                "places in {first} and in {second} are equally good"
            ));
        }
        let (_, path, alignment) = good.remove(0);
        let file = Source::new(&candidates[path]);
        let changes = self.changes(edits, &file, &alignment);
        Ok(Placed {
            path: path.to_owned(),
            changes: changes.map_err(|reason| format!("{path}: {reason}"))?,
        })
    }

    /// A quick look before the alignment: does the file have about half of the window's names?
    fn may_lie_in(&self, file: &Source<'_>) -> bool {
        let source = &self.source;
        let names: Vec<&str> = (0..source.code.len())
            .filter(|&at| source.is_name(at))
            .map(|at| source.texts[at])
            .collect();
        let present = names.iter().filter(|name| file.texts.contains(name));
        present.count() * 100 >= names.len() * 40
    }

    /// The window's tokens in some lines of the old file.
    fn tokens_of(&self, lines: &Range<usize>) -> Range<usize> {
        let token_at = |line: usize| {
            let byte = self.lines[line - self.first_line];
            let code = &self.source.code;
            code.partition_point(|token| token.span.start < byte)
        };
        token_at(lines.start)..token_at(lines.end)
    }

    fn changes(
        &self,
        edits: &[Edit],
        file: &Source<'_>,
        alignment: &Alignment,
    ) -> Result<Vec<Change>, String> {
        let names = alignment.renames(&self.source, file);
        let mut changes = Vec::new();
        for edit in edits {
            let removed = self.tokens_of(&edit.removed);
            let place = if removed.is_empty() {
                self.insertion(edit, removed.start, file, alignment)?
            } else {
                self.replacement(&removed, file, alignment)?
            };
            changes.push(place.change(edit, &names));
        }
        Ok(changes)
    }

    /// The place of an edit that removes code.
    fn replacement(
        &self,
        removed: &Range<usize>,
        file: &Source<'_>,
        alignment: &Alignment,
    ) -> Result<Place, String> {
        let gone = |at: usize| {
            let byte = self.source.code[at].span.start;
            let line = &self.source.text[self.source.start_of_line(byte)..];
            let line = line.lines().next().unwrap_or_default().trim();
            format!("the line `{line}` is changed or gone")
        };
        let mut images = Vec::new();
        let mut substituted = 0;
        for at in removed.clone() {
            match alignment.images[at] {
                Some(image) => {
                    substituted += usize::from(file.texts[image] != self.source.texts[at]);
                    images.push(image);
                }
                // rustfmt adds and removes commas when it breaks lines.
                None if self.source.texts[at] == "," => {}
                None => return Err(gone(at)),
            }
        }
        let (Some(&first), Some(&last)) = (images.first(), images.last()) else {
            return Err(gone(removed.start));
        };
        let others = (first..=last).filter(|at| !images.contains(at));
        if others.into_iter().any(|at| file.texts[at] != ",") {
            return Err(format!("{}: there is more in between", gone(removed.start)));
        }
        // With too many other names it is probably other code.
        if substituted * 3 > removed.len() {
            return Err(gone(removed.start));
        }
        let (start, end) = (file.code[first].span.start, file.code[last].span.end);
        let old_start = self.source.code[removed.start].span.start;
        let indents = (self.source.indent(old_start), file.indent(start));
        // Whole lines take their indentation from the new file.
        let is_whole = file.begins_line(first) && file.ends_line(last);
        let span = if is_whole {
            file.start_of_line(start)..file.end_of_line(end)
        } else {
            start..end
        };
        Ok(Place {
            span,
            is_whole,
            indents,
        })
    }

    /// The place of an edit that only adds lines, before the window's token `next`.
    fn insertion(
        &self,
        edit: &Edit,
        next: usize,
        file: &Source<'_>,
        alignment: &Alignment,
    ) -> Result<Place, String> {
        let image = |at: Option<usize>| *alignment.images.get(at?)?;
        let (before, after) = (image(next.checked_sub(1)), image(Some(next)));
        let after_end = |at: usize| file.end_of_line(file.code[at].span.end);
        let before_start = |at: usize| file.start_of_line(file.code[at].span.start);
        // An inserted line that follows code directly stays with that code; otherwise comments
        // precede it, and it stays with the code that follows.
        let byte = self.lines[edit.removed.start - self.first_line];
        let follows = next.checked_sub(1).is_some_and(|before| {
            let end = self.source.code[before].span.end;
            self.source.end_of_line(end) == byte
        });
        let (at, neighbour, old_neighbour) = match (before, after) {
            (Some(before), Some(after)) if before + 1 != after => {
                return Err("there is new code where it adds lines".to_owned());
            }
            (Some(before), _) if file.ends_line(before) && (follows || after.is_none()) => {
                (after_end(before), before, next - 1)
            }
            (_, Some(after)) if file.begins_line(after) => (before_start(after), after, next),
            (Some(before), _) if file.ends_line(before) => (after_end(before), before, next - 1),
            (None, None) => return Err("the code around what it adds is gone".to_owned()),
            _ => return Err("it adds lines where there is no line's end".to_owned()),
        };
        let old_byte = self.source.code[old_neighbour].span.start;
        let new_byte = file.code[neighbour].span.start;
        Ok(Place {
            span: at..at,
            is_whole: true,
            indents: (self.source.indent(old_byte), file.indent(new_byte)),
        })
    }
}

/// What an edit replaces in the new file.
struct Place {
    span: Range<usize>,
    /// Whether the span consists of whole lines.
    is_whole: bool,
    /// The indentation in the old file and in the new one.
    indents: (usize, usize),
}

impl Place {
    fn change(self, edit: &Edit, names: &BTreeMap<String, String>) -> Change {
        let (old, new) = self.indents;
        let mut text = String::new();
        for line in &edit.added {
            let own = line.len() - line.trim_start_matches(' ').len();
            if !line.trim().is_empty() {
                text.push_str(&" ".repeat((own + new).saturating_sub(old)));
                text.push_str(line.trim_start_matches(' '));
            }
            text.push('\n');
        }
        if !self.is_whole {
            text.insert(0, '\n');
        }
        Change {
            span: self.span,
            text: tokens::rename(&text, names),
        }
    }
}

/// A best alignment of a window with a file.
struct Alignment {
    score: i32,
    /// The file's token for each of the window's tokens.
    images: Vec<Option<usize>>,
}

impl Alignment {
    fn span(&self) -> Option<Range<usize>> {
        let mut images = self.images.iter().flatten();
        let first = *images.next()?;
        Some(first..images.next_back().map_or(first, |last| *last) + 1)
    }

    /// Moves each gap of the window to later tokens where that makes no difference, so that gaps
    /// begin at the beginning of a statement and not at the semicolon before it.
    fn settle(&mut self, window: &Source<'_>) {
        let mut begin = 0;
        for end in 0..self.images.len() {
            if self.images[end].is_none() {
                continue;
            }
            if begin < end && begin > 0 && window.texts[begin] == window.texts[end] {
                self.images.swap(begin, end);
                begin += 1;
            } else {
                begin = end + 1;
            }
        }
    }

    /// Local identifiers that have another name in the file, wherever the window uses them.
    fn renames(&self, window: &Source<'_>, file: &Source<'_>) -> BTreeMap<String, String> {
        let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (at, image) in self.images.iter().enumerate() {
            if let Some(image) = image.filter(|_| window.is_name(at)) {
                let others = names.entry(window.texts[at]).or_default();
                others.push(file.texts[image]);
            }
        }
        names
            .into_iter()
            .filter(|(old, new)| new[0] != *old && new.iter().all(|other| *other == new[0]))
            .map(|(old, new)| (old.to_owned(), new[0].to_owned()))
            .collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    End,
    Both,
    SkipWindow,
    SkipFile,
}

/// The best local alignment outside of the file's tokens in `except`.
fn align(window: &Source<'_>, file: &Source<'_>, except: Option<&Range<usize>>) -> Alignment {
    // Numbers are compared faster than texts.
    let mut numbers = HashMap::new();
    let mut number = |text| {
        let next = numbers.len();
        *numbers.entry(text).or_insert(next)
    };
    let old: Vec<usize> = window.texts.iter().map(|&text| number(text)).collect();
    let new: Vec<usize> = file.texts.iter().map(|&text| number(text)).collect();
    let names: Vec<bool> = (0..new.len()).map(|at| file.is_name(at)).collect();
    // `row` holds one row of the table of scores, and `steps` the choice in every cell of the
    // table.
    let width = new.len() + 1;
    let mut steps = vec![Step::End; (old.len() + 1) * width];
    let mut row = vec![0; width];
    let mut best = (0, 0, 0);
    for at in 0..old.len() {
        let (weight, is_name) = (window.weight(at), window.is_name(at));
        let mut diagonal = 0;
        for to in 0..new.len() {
            let both = if except.is_some_and(|except| except.contains(&to)) {
                None
            } else if old[at] == new[to] {
                Some(diagonal + weight)
            } else {
                (is_name && names[to]).then_some(diagonal + SUBSTITUTED)
            };
            let choices = [
                (both.unwrap_or(0), Step::Both),
                (row[to + 1] + SKIPPED, Step::SkipWindow),
                (row[to] + SKIPPED, Step::SkipFile),
            ];
            let mut chosen = (0, Step::End);
            for choice in choices {
                if choice.0 > chosen.0 {
                    chosen = choice;
                }
            }
            diagonal = row[to + 1];
            row[to + 1] = chosen.0;
            steps[(at + 1) * width + to + 1] = chosen.1;
            if chosen.0 > best.0 {
                best = (chosen.0, at + 1, to + 1);
            }
        }
    }
    // Follow the steps back from the best cell to the beginning of the alignment.
    let (score, mut at, mut to) = best;
    let mut images = vec![None; old.len()];
    loop {
        match steps[at * width + to] {
            Step::End => break,
            Step::Both => {
                (at, to) = (at - 1, to - 1);
                images[at] = Some(to);
            }
            Step::SkipWindow => at -= 1,
            Step::SkipFile => to -= 1,
        }
    }
    let mut alignment = Alignment { score, images };
    alignment.settle(window);
    alignment
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "fn land(&self, now: Time) {
    let mut state = self.state.lock();
    state.flights -= 1;
    // Why it wakes.
    self.landed.notify_all();
    drop(state);
}
";

    /// Removes the call of `notify_all`, and adds a line after `flights`.
    fn moved_to(new: &str) -> Result<String, String> {
        let edits = [
            Edit {
                removed: 3..3,
                added: vec!["    state.extra();".to_owned()],
            },
            Edit {
                removed: 4..5,
                added: Vec::new(),
            },
        ];
        let files = Files::from([
            ("a.rs".to_owned(), new.to_owned()),
            ("b.rs".to_owned(), "fn main() {}\n".to_owned()),
        ]);
        let placed = transport(OLD, &(1..6), &edits, &files, None)?;
        let mut text = files[&placed.path].clone();
        for change in placed.changes.iter().rev() {
            text.replace_range(change.span.clone(), &change.text);
        }
        Ok(text)
    }

    #[test]
    fn an_edit_follows_code_that_was_indented_renamed_and_commented() {
        let new = "use x;\nimpl S {
    fn finish(&self, now: Time) {
        let mut guard = self.guard.lock();
        guard.flights -= 1;
        /* Other words. */
        self.landed
            .notify_all(); // here
        drop(guard);
    }
}
";
        let expected = "use x;\nimpl S {
    fn finish(&self, now: Time) {
        let mut guard = self.guard.lock();
        guard.flights -= 1;
        guard.extra();
        /* Other words. */
        drop(guard);
    }
}
";
        assert_eq!(moved_to(new).unwrap(), expected);
    }

    #[test]
    fn an_edit_of_code_that_is_gone_has_no_place() {
        assert!(moved_to("fn other() {}\n").is_err());
        let without = OLD.replace("    self.landed.notify_all();\n", "");
        let reason = moved_to(&without).unwrap_err();
        assert!(reason.contains("self.landed.notify_all();"), "{reason}");
    }

    #[test]
    fn two_places_that_are_alike_are_none() {
        let reason = moved_to(&format!("{OLD}{OLD}")).unwrap_err();
        assert!(reason.contains("equally good"), "{reason}");
    }
}
