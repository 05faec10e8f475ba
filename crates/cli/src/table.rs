//! Rows in columns, and text that can't move a cursor.

use std::io::{self, Write};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The widest that a column of texts gets.
const WIDEST: usize = 60;

/// Text that moves no cursor and ends no line: keys and errors may be anybody's.
pub(crate) fn plain(text: &str) -> String {
    escaped(text, |letter| letter.escape_default().to_string())
}

/// The same for JSON, whose writer leaves some of these letters as they are. They are within its texts
/// alone, and stay the same letters.
pub(crate) fn plain_json(text: &str) -> String {
    escaped(text, |letter| format!("\\u{:04x}", u32::from(letter)))
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        // Letters that turn the direction of the text hide what follows them.
        let turns = matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match letter.is_control() || turns {
            true => plain.push_str(&escape(letter)),
            false => plain.push(letter),
        }
    }
    plain
}

/// Cuts a text so that it fits into this many columns of the terminal.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut used = 1;
    for letter in text.chars() {
        used += letter.width().unwrap_or(0);
        if used > width {
            break;
        }
        cut.push(letter);
    }
    cut.push('…');
    cut
}

/// Writes rows below their names. Texts are made plain. A line ends at `width`.
pub(crate) fn write<const N: usize>(
    out: &mut impl Write,
    names: [&str; N],
    rows: &[[String; N]],
    width: usize,
) -> io::Result<()> {
    let rows: Vec<[String; N]> = rows
        .iter()
        .map(|row| std::array::from_fn(|column| cut(&plain(&row[column]), WIDEST)))
        .collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].width());
        cells.chain([names[column].width()]).max().unwrap_or(0)
    });
    let names = names.map(str::to_owned);
    for row in std::iter::once(&names).chain(&rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width - cell.width() + 2));
        }
        writeln!(out, "{}", cut(line.trim_end(), width))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_moves_a_cursor() {
        let hostile = "a\u{1b}[2Jb\r\n\t\u{9b}1m\u{7}\u{202e}c\0";
        let plain = plain(hostile);
        assert!(plain.chars().all(|letter| !letter.is_control()));
        assert!(!plain.contains('\u{202e}'));
        assert!(plain.starts_with('a') && plain.contains('b') && plain.contains('c'));
    }

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [
            ["日本".to_owned(), "1".to_owned()],
            ["x".repeat(200), "22".to_owned()],
            [String::new(), "a\nb".to_owned()],
        ];
        let mut out = Vec::new();
        write(&mut out, ["KEY", "N"], &rows, 70).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|line| line.width() <= 70), "{text}");
        let place = |line: &str, what: &str| line[..line.find(what).unwrap()].width();
        assert_eq!(place(lines[0], "N"), place(lines[1], "1"));
        assert_eq!(place(lines[0], "N"), place(lines[2], "22"));
        assert!(lines[2].contains('…') && lines[3].contains("a\\nb"));
    }
}
