//! URLs, and strings of `key=value` pairs, as `libpq` reads them. Errors show no values: one may be
//! a password.

/// Returns the parameters of a URL or of a string of pairs, in their order.
pub(crate) fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let text = text.trim();
    let prefix = ["postgres://", "postgresql://"]
        .into_iter()
        .find_map(|prefix| text.strip_prefix(prefix));
    match prefix {
        Some(rest) => of_url(rest),
        None => of_pairs(text),
    }
}

fn of_url(rest: &str) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    // An empty part leaves the value of the query, or the default.
    let mut add = |name: &str, value: &str| -> Result<(), String> {
        if !value.is_empty() {
            found.push((name.to_owned(), decoded(value)?));
        }
        Ok(())
    };
    let (user, password, rest) = credentials(rest);
    add("user", user)?;
    add("password", password)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (places, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for place in places.split(',') {
        let (host, port) = host_and_port(place)?;
        hosts.push(host);
        ports.push(port);
    }
    // An empty name or port keeps its place in the list: it stands for the default of that server.
    add("host", &hosts.join(","))?;
    if ports.iter().any(|port| !port.is_empty()) {
        add("port", &ports.join(","))?;
    }
    add("dbname", database)?;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        found.push(parameter(pair)?);
    }
    Ok(found)
}

/// Returns the name, the password, and the rest after them. As in `libpq`, they end at the first
/// `@`, unless a `/` comes before it.
fn credentials(rest: &str) -> (&str, &str, &str) {
    let path = rest.find('/').unwrap_or(rest.len());
    let Some(at) = rest[..path].find('@') else {
        return ("", "", rest);
    };
    let (user, password) = rest[..at].split_once(':').unwrap_or((&rest[..at], ""));
    (user, password, &rest[at + 1..])
}

/// Returns the host and the port of one server. An IPv6 address is in brackets, since it has
/// colons.
fn host_and_port(place: &str) -> Result<(&str, &str), String> {
    if place.contains('@') {
        return Err("there is more than one `@`: write `%40` for those of a password".to_owned());
    }
    let Some(inner) = place.strip_prefix('[') else {
        return Ok(place.split_once(':').unwrap_or((place, "")));
    };
    let (host, after) = inner
        .split_once(']')
        .ok_or("an address within `[` has no end")?;
    let port = match after {
        "" => "",
        after => after
            .strip_prefix(':')
            .ok_or("a port begins with `:` after an address")?,
    };
    Ok((host, port))
}

/// Returns one parameter of the query.
fn parameter(pair: &str) -> Result<(String, String), String> {
    let (name, value) = pair
        .split_once('=')
        .ok_or("a parameter after `?` has no `=`")?;
    let (name, value) = (decoded(name)?, decoded(value)?);
    Ok(match (&*name, &*value) {
        // The form of JDBC.
        ("ssl", "true") => ("sslmode".to_owned(), "require".to_owned()),
        _ => (name, value),
    })
}

/// Replaces each `%` and its two digits by their byte.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || (bytes.next()? as char).to_digit(16);
        let value = digit().zip(digit()).map(|(high, low)| high * 16 + low);
        match value.and_then(|value| u8::try_from(value).ok()) {
            None | Some(0) => return Err("a `%` without a valid number after it".to_owned()),
            Some(value) => decoded.push(value),
        }
    }
    String::from_utf8(decoded).map_err(|_| "what the `%` stand for is not UTF-8".to_owned())
}

fn of_pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace());
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        let after = after
            .trim_start()
            .strip_prefix('=')
            .ok_or("a parameter has no `=`")?;
        let (value, after) = value(after.trim_start())?;
        found.push((name.to_owned(), value));
        rest = after.trim_start();
    }
    Ok(found)
}

/// Returns one value, and the text after it.
fn value(text: &str) -> Result<(String, &str), String> {
    let (quoted, text) = match text.strip_prefix('\'') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            space if !quoted && space.is_whitespace() => return Ok((value, &text[at..])),
            other => value.push(other),
        }
    }
    match quoted {
        true => Err("a value within quotes has no end".to_owned()),
        false => Ok((value, "")),
    }
}
