//! Joins: fields of structured text as `name="value"` lines, and values next to each other.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use crate::finding::{At, Location, Step};
use crate::phrase::PHRASE;
use crate::validate;
use crate::view::{Builder, View};

/// Maximum bytes of a part that is read as a structure.
pub(crate) const STRUCTURE: usize = 1 << 20;
/// Maximum fields of a structure.
const FIELDS: usize = 4096;
/// Maximum bytes of a value that is joined with its neighbors.
const VALUE: usize = 256;
/// Maximum bytes of a value of a body, and of one that is joined with those of the same name in earlier messages.
const NAMED: usize = 128;
/// Maximum neighbors that are joined.
const NEIGHBORS: usize = 4;
/// Maximum short values of which every group of neighbors is a text of its own. More are one text.
const WINDOWED: usize = 512;
/// Maximum short values that are joined as a whole.
const WHOLE: usize = 20;
/// Maximum bytes of values that are joined with all their neighbors of such length, however many these are.
const PIECE: usize = 4;

/// Names of fields that hold the name of a value, and of fields that hold the value.
const NAME_FIELDS: [&str; 6] = ["name", "key", "field", "header", "variable", "param"];
const VALUE_FIELDS: [&str; 5] = ["value", "val", "content", "data", "secret"];

/// One field of a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field<'a> {
    name: Cow<'a, str>,
    value: Cow<'a, [u8]>,
    /// Bytes of the part that hold the value.
    range: Range<usize>,
}

impl Field<'_> {
    /// Returns a field whose value is the name of this one. It stands where this one is.
    fn of_name(&self) -> Field<'static> {
        let (name, value) = (Cow::default(), self.name.as_bytes().to_vec().into());
        Field { name, value, range: self.range.clone() }
    }
}

/// View of fields.
pub(crate) struct Joined {
    pub(crate) view: View<'static>,
    /// Values stand next to values that they did not belong to, so a name before a value proves nothing.
    pub(crate) nameless: bool,
}

/// Returns the views of the fields of a part.
pub(crate) fn views(location: &Location, bytes: &[u8]) -> Vec<Joined> {
    let fields = fields(location, bytes);
    if fields.is_empty() {
        return Vec::new();
    }
    let root = View::root(bytes);
    let mut views = Vec::new();
    views.extend(named(&root, &fields).map(|view| Joined { view, nameless: false }));
    views.extend(neighbors(&root, &fields).map(|view| Joined { view, nameless: true }));
    // What names say alone counts too, such as the halves of a token.
    let (mut known, mut names) = (HashSet::new(), Vec::new());
    for field in &fields {
        if !field.name.is_empty() && known.insert(&field.name) {
            names.push(field.of_name());
        }
    }
    views.extend(neighbors(&root, &names).map(|view| Joined { view, nameless: true }));
    views
}

/// Returns the values of a part that are at most `longest` bytes long. A part without a structure is one value.
pub(crate) fn values(location: &Location, bytes: &[u8], longest: usize) -> Vec<Vec<u8>> {
    let mut fields = fields(location, bytes);
    if location.at == At::Url
        && let Some(query) = memchr::memchr(b'?', bytes)
    {
        // The path repeats in every request.
        fields.retain(|field| field.range.start > query);
    }
    if location.at == At::Host {
        // The other labels repeat in every name.
        fields.truncate(1);
    }
    // A body of several lines is a text, such as a key or the sums of a module, and no piece of one.
    let is_body = location.at == At::Body;
    let longest = if is_body { longest.min(NAMED) } else { longest };
    if fields.is_empty() && (1..=longest).contains(&bytes.len()) && !(is_body && bytes.contains(&b'\n')) {
        return vec![bytes.to_vec()];
    }
    let short = |field: &Field<'_>| (1..=longest).contains(&field.value.len());
    fields.into_iter().filter(short).map(|field| field.value.into_owned()).collect()
}

/// Returns the short values of a part by the names of their fields: those of at most `most` names, without numbers, which count
/// the messages of a sequence rather than carry it.
pub(crate) fn by_name(location: &Location, bytes: &[u8], most: usize) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut named: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for field in fields(location, bytes) {
        let is_number = field.value.iter().all(u8::is_ascii_digit);
        if field.name.is_empty() || is_number || field.value.len() > NAMED {
            continue;
        }
        if named.len() < most || named.contains_key(&*field.name) {
            named.entry(field.name.into_owned()).or_default().push(field.value.into_owned());
        }
    }
    named
}

fn fields<'a>(location: &'a Location, bytes: &'a [u8]) -> Vec<Field<'a>> {
    let bytes = &bytes[..bytes.len().min(STRUCTURE)];
    match location.at {
        At::Host => parts(bytes, 0, b'.'),
        At::Url => url(bytes),
        At::Header => {
            let name = location.name.as_str().into();
            vec![Field { name, value: bytes.into(), range: 0..bytes.len() }]
        }
        _ => {
            let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
            match start {
                Some(b'{' | b'[') if is_json(bytes) => json(bytes),
                _ if bytes.starts_with(b"data:") || bytes.starts_with(b"event:") => json(bytes),
                _ if bytes.starts_with(b"--") => multipart(bytes),
                _ if is_form(bytes) => pairs(bytes, 0),
                _ => Vec::new(),
            }
        }
    }
}

/// Splits a host name or a path.
fn parts(bytes: &[u8], start: usize, separator: u8) -> Vec<Field<'_>> {
    let mut fields = Vec::new();
    let mut at = start;
    for part in bytes.split(|byte| *byte == separator).take(FIELDS) {
        if !part.is_empty() {
            fields.push(Field { name: "".into(), value: part.into(), range: at..at + part.len() });
        }
        at += part.len() + 1;
    }
    fields
}

/// Splits the target of a request: segments of the path, then fields of the query.
fn url(bytes: &[u8]) -> Vec<Field<'_>> {
    let path = memchr::memchr(b'?', bytes).unwrap_or(bytes.len());
    let mut fields = parts(&bytes[..path], 0, b'/');
    if path < bytes.len() {
        fields.extend(pairs(&bytes[path + 1..], path + 1));
    }
    fields
}

/// Reports whether a text starts like an object or an array of JSON, and not like a program.
fn is_json(bytes: &[u8]) -> bool {
    let mut first = bytes.iter().filter(|byte| !byte.is_ascii_whitespace()).take(2);
    let (opening, next) = (first.next(), first.next());
    match opening {
        Some(b'{') => matches!(next, Some(b'"' | b'}') | None),
        _ => next.is_none_or(|byte| b"\"{[]-tfn".contains(byte) || byte.is_ascii_digit()),
    }
}

fn is_form(bytes: &[u8]) -> bool {
    let first = &bytes[..bytes.len().min(512)];
    first.contains(&b'=') && !first.iter().any(|byte| b" \n\r\t<{\"".contains(byte))
}

/// Splits `name=value` pairs.
fn pairs(bytes: &[u8], start: usize) -> Vec<Field<'_>> {
    let mut fields = Vec::new();
    let mut at = start;
    for pair in bytes.split(|byte| matches!(byte, b'&' | b';')).take(FIELDS) {
        let name = memchr::memchr(b'=', pair).unwrap_or(0);
        let skipped = if name > 0 { name + 1 } else { 0 };
        fields.push(Field {
            name: String::from_utf8_lossy(&unescape(&pair[..name])).into_owned().into(),
            value: unescape(&pair[skipped..]),
            range: at + skipped..at + pair.len(),
        });
        at += pair.len() + 1;
    }
    fields
}

/// Decodes percent-encoding and plus signs of a form. A malformed escape stays.
fn unescape(bytes: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'%', b'+', bytes).is_none() {
        return bytes.into();
    }
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digit = |place: usize| char::from(*bytes.get(place)?).to_digit(16);
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high << 4 | low) as u8);
                at += 2;
            }
            (b'+', _, _) => decoded.push(b' '),
            (byte, _, _) => decoded.push(byte),
        }
        at += 1;
    }
    decoded.into()
}

/// Finds the strings and numbers of JSON, valid or not, in one document or in many.
fn json(bytes: &[u8]) -> Vec<Field<'_>> {
    let mut fields = Vec::new();
    let (mut at, mut name) = (0, Cow::default());
    while at < bytes.len() && fields.len() < FIELDS {
        let byte = bytes[at];
        if byte == b'"' {
            let (end, value) = string(bytes, at + 1);
            let colon = bytes[end..].iter().skip(1).find(|byte| !byte.is_ascii_whitespace());
            if colon == Some(&b':') {
                name = match value {
                    Cow::Borrowed(value) => String::from_utf8_lossy(value),
                    Cow::Owned(value) => String::from_utf8_lossy(&value).into_owned().into(),
                };
            } else {
                fields.push(Field { name: name.clone(), value, range: at + 1..end });
            }
            at = end + 1;
        } else if byte.is_ascii_digit() {
            let length =
                bytes[at..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
            let range = at..at + length;
            fields.push(Field { name: name.clone(), value: bytes[range.clone()].into(), range });
            at += length;
        } else {
            at += 1;
        }
    }
    fields
}

/// Reads a string of JSON from its first character: the place of the closing quote and the value.
fn string(bytes: &[u8], start: usize) -> (usize, Cow<'_, [u8]>) {
    let mut end = start;
    while let Some(found) = memchr::memchr2(b'"', b'\\', &bytes[end.min(bytes.len())..]) {
        end += found;
        if bytes[end] == b'"' {
            let raw = &bytes[start..end];
            if !raw.contains(&b'\\') {
                return (end, raw.into());
            }
            let quoted = [b"\"", raw, b"\""].concat();
            let value = serde_json::from_slice::<String>(&quoted);
            return (end, value.map_or_else(|_| raw.into(), |value| value.into_bytes().into()));
        }
        end += 2;
    }
    (bytes.len(), bytes[start.min(bytes.len())..].into())
}

/// Splits a multipart body into its parts, each with its name.
fn multipart(bytes: &[u8]) -> Vec<Field<'_>> {
    let Some(line) = memchr::memchr(b'\n', bytes) else { return Vec::new() };
    let boundary = bytes[..line].trim_ascii_end();
    if boundary.len() < 3 || boundary.len() > 100 {
        return Vec::new();
    }
    let mut fields = Vec::new();
    let mut starts = memchr::memmem::find_iter(bytes, boundary).peekable();
    while let Some(start) = starts.next() {
        let from = start + boundary.len();
        let end = starts.peek().copied().unwrap_or(bytes.len()).max(from);
        let part = &bytes[from..end];
        let split = memchr::memmem::find(part, b"\r\n\r\n")
            .map(|at| (at, at + 4))
            .or_else(|| memchr::memmem::find(part, b"\n\n").map(|at| (at, at + 2)));
        let Some((head, body)) = split else { continue };
        let value = part[body..].trim_ascii_end();
        let name = memchr::memmem::find(&part[..head], b"name=\"").map(|at| at + 6).map_or(&b""[..], |at| {
            let rest = &part[at..head];
            &rest[..memchr::memchr(b'"', rest).unwrap_or(rest.len())]
        });
        fields.push(Field {
            name: String::from_utf8_lossy(name),
            value: value.into(),
            range: from + body..from + body + value.len(),
        });
        if fields.len() == FIELDS {
            break;
        }
    }
    fields
}

/// Returns the fields as lines `name="value"`.
fn named(root: &View<'_>, fields: &[Field<'_>]) -> Option<View<'static>> {
    let mut builder = Builder::new(root);
    let mut line = |name: &str, field: &Field<'_>| {
        // The name comes from the same field, so the whole line counts as decoded.
        builder.decoded_parts(field.range.clone(), [name.as_bytes(), b"=\"", &field.value, b"\""]);
        builder.separate();
    };
    for (at, field) in fields.iter().enumerate() {
        // A long text without escapes was scanned where it stands.
        if field.value.len() > VALUE && root.bytes.get(field.range.clone()) == Some(&*field.value) {
            continue;
        }
        let is = |field: &Field<'_>, names: &[&str]| {
            names.iter().any(|name| field.name.eq_ignore_ascii_case(name))
        };
        let named_by = [at.checked_sub(1), Some(at + 1)]
            .into_iter()
            .flatten()
            .filter_map(|other| fields.get(other))
            .find(|other| is(other, &NAME_FIELDS) && other.value.len() <= VALUE);
        match named_by {
            Some(other) if is(field, &VALUE_FIELDS) => line(&String::from_utf8_lossy(&other.value), field),
            _ if !field.name.is_empty() => line(&field.name, field),
            _ => {}
        }
    }
    builder.finish(Step::Join)
}

/// Returns short values joined with 1 to 3 of their neighbors, and all of them if there are few.
fn neighbors(root: &View<'_>, fields: &[Field<'_>]) -> Option<View<'static>> {
    let short: Vec<_> = fields.iter().filter(|field| (1..=VALUE).contains(&field.value.len())).collect();
    if short.len() < 2 {
        return None;
    }
    let mut builder = Builder::new(root);
    let mut join = |fields: &[&Field<'_>]| {
        let range = fields.iter().map(|field| field.range.start).min().unwrap_or(0)
            ..fields.iter().map(|field| field.range.end).max().unwrap_or(0);
        builder.decoded_parts(range, fields.iter().map(|field| &*field.value));
        builder.separate();
    };
    if short.len() <= WINDOWED {
        for count in 2..=NEIGHBORS {
            short.windows(count).for_each(&mut join);
        }
    } else {
        join(&short);
    }
    if (NEIGHBORS + 1..=WHOLE).contains(&short.len()) {
        join(&short);
    }
    // A secret in pieces of a few characters. Numbers alone are data.
    let is_piece = |field: &&Field<'_>| field.value.len() <= PIECE;
    for row in short.chunk_by(|one, next| is_piece(one) && is_piece(next)).filter(|row| row.len() > WHOLE) {
        if row.iter().any(|field| !field.value.iter().all(u8::is_ascii_digit)) {
            join(row);
        }
    }
    let mut sorted = short.clone();
    sorted.sort_by(|one, other| one.name.cmp(&other.name));
    if sorted != short && short.len() <= WHOLE {
        join(&sorted);
    }
    // Words of a recovery phrase.
    let is_word = |field: &&Field<'_>| validate::word(&field.value).is_some();
    for row in short.chunk_by(|one, next| is_word(one) && is_word(next)).filter(|row| row.len() >= PHRASE) {
        let range = row[0].range.start..row[row.len() - 1].range.end;
        builder.decoded_parts(range, row.iter().flat_map(|field| [&*field.value, b" "]));
        builder.separate();
    }
    builder.finish(Step::Join)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(at: At, name: &str, text: &str) -> String {
        let views = views(&Location::named(at, name), text.as_bytes());
        views.iter().map(|joined| String::from_utf8_lossy(&joined.view.bytes).into_owned()).collect()
    }

    #[test]
    fn names_of_json_are_joined() {
        let text = texts(At::Body, "", r#"[{"gh": 1, "p_x": 2}, {"gh": 3, "p_x": 4, "y": 5}]"#);
        assert!(text.contains("ghp_xy"), "{text}");
    }

    #[test]
    fn values_of_json_are_joined() {
        let text = texts(At::Body, "", r#"{"a": "gh", "b": ["p_", "x\u0079"], "n": 41}"#);
        assert!(
            text.contains("\nghp_xy\n") && text.contains("a=\"gh\"") && text.contains("ghp_xy41"),
            "{text}"
        );
    }

    #[test]
    fn words_of_a_phrase_are_joined_with_spaces() {
        let words = [
            "legal", "winner", "thank", "year", "wave", "sausage", "worth", "useful", "ship", "zoo",
            "abandon", "ability",
        ];
        let form = words.iter().enumerate().map(|(at, word)| format!("w{at}={word}")).collect::<Vec<_>>();
        assert!(texts(At::Body, "", &form.join("&")).contains(&words.join(" ")));
        assert!(!texts(At::Body, "", &form[..8].join("&")).contains("legal winner"));
    }

    #[test]
    fn many_short_values_in_a_row_are_joined() {
        let secret: String = ('a'..='z').cycle().take(60).collect();
        let letters: Vec<String> = secret.chars().map(|letter| letter.to_string()).collect();
        let json = serde_json::to_string(&[&["a long value".to_owned()][..], &letters].concat()).unwrap();
        let text = texts(At::Body, "", &json);
        assert!(text.contains(&format!("\n{secret}\n")), "{text}");
        assert!(texts(At::Url, "", &format!("/{}", letters.join("/"))).contains(&secret));
        let numbers = serde_json::to_string(&(0..60).collect::<Vec<_>>()).unwrap();
        assert!(!texts(At::Body, "", &numbers).contains("012345678910"));
    }

    #[test]
    fn name_and_value_in_two_fields_are_one_line() {
        let text = texts(At::ToolArgs, "", r#"{"env": [{"name": "API_KEY", "value": "abc"}]}"#);
        assert!(text.contains("API_KEY=\"abc\""), "{text}");
    }

    #[test]
    fn other_structures_are_split() {
        assert!(texts(At::Url, "", "/v1/ab/cd?x=e%66&y=g").contains("abcdefg"));
        assert!(texts(At::Host, "", "ab.cd.example.com").contains("abcd\n"));
        assert!(texts(At::Header, "X-Api-Key", "abc").contains("X-Api-Key=\"abc\""));
        assert!(texts(At::Body, "", "a=gh&b=p_").contains("ghp_"));
        let multipart = "--xyz\r\nContent-Disposition: form-data; name=\"k\"\r\n\r\ngh\r\n--xyz\r\nA: b\r\n\r\np_\r\n--xyz--";
        let text = texts(At::Body, "", multipart);
        assert!(text.contains("k=\"gh\"") && text.contains("ghp_"), "{text}");
    }
}
