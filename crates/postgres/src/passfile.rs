//! The file of passwords, `~/.pgpass`, by the rules of `libpq`. It is read for each connection.

use std::fs;
use std::path::PathBuf;

/// A file that may contain the password of a user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PasswordFile {
    pub(crate) path: PathBuf,
    pub(crate) database: String,
    pub(crate) user: String,
}

impl PasswordFile {
    /// Returns the password for a server with any of these names, if the file has one. The error
    /// says why the file was left out.
    pub(crate) fn password(&self, names: &[String], port: u16) -> Result<Option<String>, String> {
        let path = &self.path;
        let Ok(about) = fs::metadata(path) else {
            return Ok(None);
        };
        if !about.is_file() {
            return Err(format!("{path:?} is no plain file, and was left out"));
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            if about.permissions().mode() & 0o077 != 0 {
                return Err(format!(
                    "{path:?} was left out, since others may use it: set its rights to 0600"
                ));
            }
        }
        let text = fs::read(path).map_err(|error| format!("{path:?} can't be read: {error}"))?;
        let text = String::from_utf8_lossy(&text);
        let port = port.to_string();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Ok(lines
            .filter_map(fields)
            .find(|(fields, _)| {
                let [host, of_port, database, user] = fields;
                names.iter().any(|name| matches(host, name))
                    && matches(of_port, &port)
                    && matches(database, &self.database)
                    && matches(user, &self.user)
            })
            .map(|(_, password)| unescaped(password))
            .filter(|password| !password.is_empty()))
    }
}

/// Returns the four fields of a line to which its password belongs, and the password.
fn fields(line: &str) -> Option<([&str; 4], &str)> {
    let mut rest = line;
    let mut fields = [""; 4];
    for field in &mut fields {
        let mut is_escaped = false;
        let end = rest.find(|character| {
            let ends = character == ':' && !is_escaped;
            is_escaped = character == '\\' && !is_escaped;
            ends
        })?;
        *field = &rest[..end];
        rest = &rest[end + 1..];
    }
    Some((fields, rest))
}

fn matches(field: &str, value: &str) -> bool {
    field == "*" || unescaped(field) == value
}

fn unescaped(field: &str) -> String {
    let mut value = String::new();
    let mut characters = field.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => value.extend(characters.next()),
            other => value.push(other),
        }
    }
    value
}
