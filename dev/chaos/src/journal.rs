//! What a process has done, in a file that outlives it. Each entry is one line of JSON, written by
//! one call: what was written is the system's, and stays when the process is killed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The end of the names of the files.
const KIND: &str = "journal";

/// The journal of one member. Its threads may share it.
#[derive(Debug)]
pub struct Journal(File);

impl Journal {
    /// Makes a new file in this folder.
    pub fn create(folder: &Path, name: &str) -> io::Result<Self> {
        let path = folder.join(name).with_extension(KIND);
        let file = File::options().append(true).create_new(true).open(path)?;
        Ok(Journal(file))
    }

    /// Writes an entry.
    pub fn write(&self, entry: &impl Serialize) {
        let mut line = serde_json::to_vec(entry).expect("entries are plain data");
        line.push(b'\n');
        // One call for the whole line: the lines of several threads do not mix.
        let written = (&self.0).write(&line).ok();
        assert_eq!(written, Some(line.len()), "the journal can't be written");
    }
}

/// The entries of one journal. There are none if it was not made.
pub fn read<E: DeserializeOwned>(folder: &Path, name: &str) -> io::Result<Vec<E>> {
    let path = folder.join(name).with_extension(KIND);
    match fs::read_to_string(&path) {
        Ok(text) => text.lines().map(|line| entry(line, &path)).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The entries of all journals of a folder.
pub fn read_all<E: DeserializeOwned>(folder: &Path) -> io::Result<Vec<E>> {
    let mut entries = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == KIND) {
            for line in fs::read_to_string(&path)?.lines() {
                entries.push(entry(line, &path)?);
            }
        }
    }
    Ok(entries)
}

/// Removes a journal that is read.
pub fn remove(folder: &Path, name: &str) {
    let _ = fs::remove_file(folder.join(name).with_extension(KIND));
}

fn entry<E: DeserializeOwned>(line: &str, path: &Path) -> io::Result<E> {
    serde_json::from_str(line)
        .map_err(|error| io::Error::other(format!("{}: {line}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_while_their_writer_lives() {
        let folder =
            std::env::temp_dir().join(format!("tourbillon-journal-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (one, two) = (Journal::create(&folder, "1"), Journal::create(&folder, "2"));
        let (one, two) = (one.unwrap(), two.unwrap());
        one.write(&(0, 5));
        two.write(&(1, 6));
        one.write(&(0, 7));
        assert_eq!(read::<(u8, u8)>(&folder, "1").unwrap(), [(0, 5), (0, 7)]);
        assert_eq!(read::<(u8, u8)>(&folder, "3").unwrap(), []);
        let mut all = read_all::<(u8, u8)>(&folder).unwrap();
        all.sort_unstable();
        assert_eq!(all, [(0, 5), (0, 7), (1, 6)]);
        // What is no entry is never passed over.
        assert!(read::<String>(&folder, "2").is_err());
        assert!(Journal::create(&folder, "2").is_err());
        remove(&folder, "2");
        assert_eq!(read_all::<(u8, u8)>(&folder).unwrap().len(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
