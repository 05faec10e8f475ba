//! The name of the tables of a store: several stores lie beside each other in one database.
//!
//! All statements of the crate are written for the name `tourbillon`, so they can be read, and
//! carried out by hand. [`Namespace::fill`] puts another name in its place.

use std::borrow::Cow;

use super::StoreError;
use crate::sync::Arc;

/// The name unless an option sets another one.
pub(crate) const DEFAULT: &str = "tourbillon";

/// The greatest length of a name. With what follows it, it fits the names of both databases.
const LONGEST: usize = 48;

/// A checked name: no quotes and no case can change what it means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Namespace(Arc<str>);

impl Namespace {
    /// Checks a name. `what` it is the name of, for errors.
    pub(crate) fn new(what: &str, name: &str) -> Result<Self, StoreError> {
        let is_good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        let refuse = |why: &str| Err(StoreError::Refused(format!("the {what} {name:?} {why}")));
        if name.is_empty() || name.len() > LONGEST {
            return refuse(&format!(
                "has {} bytes: choose one of 1 to {LONGEST}",
                name.len()
            ));
        }
        if !name.bytes().all(is_good) || name.as_bytes()[0].is_ascii_digit() {
            return refuse(
                "may have the letters a to z, digits and underscores alone, and no digit in front",
            );
        }
        if ["pg_", "sqlite_"].iter().any(|own| name.starts_with(own))
            || name == "information_schema"
        {
            return refuse("belongs to the database itself");
        }
        Ok(Namespace(name.into()))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Puts this name in the place of `tourbillon` in a statement.
    pub(crate) fn fill<'a>(&self, sql: &'a str, forms: &[Form]) -> Cow<'a, str> {
        if *self.0 == *DEFAULT {
            return Cow::Borrowed(sql);
        }
        let mut filled = String::with_capacity(sql.len() * 2);
        let mut copied = 0;
        for (at, _) in sql.match_indices(DEFAULT) {
            let (before, after) = (&sql[..at], &sql[at + DEFAULT.len()..]);
            let fits =
                |form: &&Form| before.ends_with(form.before) && after.starts_with(form.after);
            let Some(form) = forms.iter().find(fits) else {
                continue;
            };
            filled.push_str(&sql[copied..at]);
            filled.push_str(form.quote);
            filled.push_str(&self.0);
            filled.push_str(form.quote);
            copied = at + DEFAULT.len();
        }
        filled.push_str(&sql[copied..]);
        Cow::Owned(filled)
    }
}

/// Where the name stands in a statement, and how it is written there. All else that has the word
/// `tourbillon`, such as a message, stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// What comes before the name.
    pub(crate) before: &'static str,
    /// What follows it.
    pub(crate) after: &'static str,
    /// What surrounds another name: some names are words of SQL.
    pub(crate) quote: &'static str,
}

impl Default for Namespace {
    fn default() -> Self {
        Namespace(DEFAULT.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_quotes_or_case_would_change_are_refused() {
        let long = "x".repeat(LONGEST);
        for good in ["tourbillon", "shop", "_", "a1", "order", &long] {
            assert_eq!(
                Namespace::new("schema", good).map(|name| name.0),
                Ok(good.into())
            );
        }
        let long = "x".repeat(LONGEST + 1);
        let bad = [
            "",
            "1a",
            "Shop",
            "a-b",
            "a b",
            "a.b",
            "a\"b",
            "a'b",
            "a;b",
            "a\0",
            "\u{e4}",
            "pg_x",
            "pg_",
            "sqlite_x",
            "information_schema",
            &long,
        ];
        for bad in bad {
            let refused = Namespace::new("schema", bad).expect_err(bad).to_string();
            assert!(refused.contains("the schema"), "{refused}");
        }
    }

    #[test]
    fn a_name_is_put_in_its_place_once_and_nowhere_else() {
        let forms = [
            Form {
                before: "'",
                after: "'",
                quote: "",
            },
            Form {
                before: "",
                after: ".",
                quote: "\"",
            },
        ];
        let sql = "select 'tourbillon', tourbillon.f('tourbillon: no', 'x of tourbillon')";
        assert_eq!(Namespace::default().fill(sql, &forms), sql);
        let name = Namespace::new("schema", "my_tourbillon").expect("a name");
        let filled =
            "select 'my_tourbillon', \"my_tourbillon\".f('tourbillon: no', 'x of tourbillon')";
        assert_eq!(name.fill(sql, &forms), filled);
        assert_eq!(name.fill("select 1", &forms), "select 1");
    }
}
