//! Texts of cases: encoders and made-up values.

use super::encode;

/// Value of a credential of the sandbox.
pub(crate) const OWN: &str = "h7Kp-own?credential>9Qx2Lm";

/// Replaces `<<f|x>>` and `<<key>>`, the innermost ones first.
pub(crate) fn expand(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    let find = |bytes: &[u8], mark: &[u8]| bytes.windows(2).position(|pair| pair == mark);
    while let Some(end) = find(&bytes, b">>") {
        let Some(start) = bytes[..end].windows(2).rposition(|pair| pair == b"<<") else { break };
        let inside = bytes[start + 2..end].to_vec();
        let name: Vec<u8> = inside.iter().copied().take_while(|byte| *byte != b'|').collect();
        let name = String::from_utf8(name).unwrap();
        // Not one of ours: a redirection of a shell.
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) || name.is_empty() {
            break;
        }
        let value = match inside.get(name.len() + 1..) {
            Some(argument) => apply(&name, argument),
            None => value(&name).into_bytes(),
        };
        bytes.splice(start..end + 2, value);
    }
    bytes
}

fn apply(function: &str, text: &[u8]) -> Vec<u8> {
    let each = |write: &dyn Fn(u8) -> String, between: &str| {
        text.iter().map(|byte| write(*byte)).collect::<Vec<_>>().join(between).into_bytes()
    };
    let letters = |change: &dyn Fn(char) -> String| {
        String::from_utf8_lossy(text).chars().map(change).collect::<String>().into_bytes()
    };
    match function {
        "base64" => encode::base64(text, b"+/"),
        "base64url" => encode::base64(text, b"-_").into_iter().filter(|digit| *digit != b'=').collect(),
        "base64a" => encode::base64(text, b"+/")[..28].to_vec(),
        "base64b" => encode::base64(text, b"+/")[28..].to_vec(),
        "base32" => encode::base32(text),
        "base32label" => {
            encode::base32(text).to_ascii_lowercase().into_iter().filter(|digit| *digit != b'=').collect()
        }
        "rot13" => letters(&|letter| match letter {
            'a'..='m' | 'A'..='M' => char::from(letter as u8 + 13).into(),
            'n'..='z' | 'N'..='Z' => char::from(letter as u8 - 13).into(),
            other => other.into(),
        }),
        "pieces" => letters(&|letter| format!("\"{letter}\", ")),
        "literals" => text
            .chunks(4)
            .map(|part| format!("\"{}\"", String::from_utf8_lossy(part)))
            .collect::<Vec<_>>()
            .join(" + ")
            .into_bytes(),
        "zip" => encode::compress(hutch_scan::Compression::Zip, text),
        "gzip" => encode::compress(hutch_scan::Compression::Gzip, text),
        "hex" => each(&|byte| format!("{byte:02x}"), ""),
        "colons" => each(&|byte| format!("{byte:02x}"), ":"),
        "decimal" => each(&|byte| byte.to_string(), ", "),
        "percent" => each(&|byte| format!("%{byte:02x}"), ""),
        "escapes" => each(&|byte| format!("\\x{byte:02x}"), ""),
        "unicode" => each(&|byte| format!("\\u{byte:04x}"), ""),
        "html" => each(&|byte| format!("&#{byte};"), ""),
        "bits" => each(&|byte| format!("{byte:08b}"), " "),
        "octal" => each(&|byte| format!("{byte:03o}"), " "),
        "quoted" => each(&|byte| format!("={byte:02X}"), ""),
        "calls" => each(&|byte| format!("chr({byte})"), "+"),
        "dump" => dump(text),
        "base85" => base85(text),
        "rot47" => text.iter().map(|byte| (byte - b'!' + 47) % 94 + b'!').collect(),
        "lines" => letters(&|letter| format!("{letter}\n")),
        "capitals" => text.to_ascii_uppercase(),
        "fields" => String::from_utf8_lossy(text)
            .split(' ')
            .enumerate()
            .map(|(at, word)| format!("\"w{at}\": \"{word}\""))
            .collect::<Vec<_>>()
            .join(", ")
            .into_bytes(),
        "spaced" => letters(&|letter| format!("{letter} ")),
        "full" => encode::text("full width", text),
        "invisible" => letters(&|letter| format!("{letter}\u{200b}")),
        "cyrillic" => letters(&|letter| match letter {
            'a' => "а".into(),
            'o' => "о".into(),
            other => other.into(),
        }),
        "twins" => replaced(text, "AaeEoOpPiIcxyTs", "АаеЕоОрРіІсхуТѕ"),
        "greek" => replaced(text, "aoeinuptIOEAT", "αοειηυρτΙΟΕΑΤ"),
        "smallcaps" => replaced(text, "abcdegilmnoprstuvy", "ᴀʙᴄᴅᴇɢɪʟᴍɴᴏᴘʀꜱᴛᴜᴠʏ"),
        "squares" => letters(&|letter| match letter {
            'a'..='z' => char::from_u32(u32::from(letter) - 97 + 0x1f170).into_iter().collect(),
            other => other.into(),
        }),
        "strokes" => replaced(text, "olidht", "øłɨđħŧ"),
        "selectors" => {
            letters(&|letter| char::from_u32(u32::from(letter) - 16 + 0xe0100).into_iter().collect())
        }
        "tags" => letters(&|letter| char::from_u32(u32::from(letter) + 0xe0000).unwrap().into()),
        "wide" => text.iter().flat_map(|byte| [*byte, 0]).collect(),
        "reverse" => text.iter().rev().copied().collect(),
        "gzip64" => encode::text("gzip in base64", text),
        "wrapped" => encode::base64(text, b"+/").chunks(64).flat_map(|line| [line, b"\n"].concat()).collect(),
        "numbered" => (0..60)
            .flat_map(|number| {
                String::from_utf8_lossy(text)
                    .replace('%', &format!("{number:04}"))
                    .into_bytes()
                    .into_iter()
                    .chain([b'\n'])
            })
            .collect(),
        other => panic!("unknown function {other}"),
    }
}

/// Encodes in the alphabet of base85 that Git has.
fn base85(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 85] =
        b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
    let group = |four: &[u8]| {
        let byte = |place: usize| u32::from(four.get(place).copied().unwrap_or(0));
        let value = (0..4).fold(0, |value, place| value << 8 | byte(place));
        let digits = (0..5).rev().map(|place| DIGITS[(value / 85_u32.pow(place) % 85) as usize]);
        digits.take(four.len() + 1).collect::<Vec<_>>()
    };
    bytes.chunks(4).flat_map(group).collect()
}

/// Writes bytes in hexadecimal digits, 16 on each line after their offset.
fn dump(text: &[u8]) -> Vec<u8> {
    let line = |(number, bytes): (usize, &[u8])| {
        let pairs: Vec<_> =
            bytes.chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
        let pairs: Vec<String> = pairs;
        format!("{:08x}: {}  {}\n", number * 16, pairs.join(" "), String::from_utf8_lossy(bytes))
    };
    text.chunks(16).enumerate().map(line).collect::<String>().into_bytes()
}

/// Replaces letters by those at the same places of another list.
fn replaced(text: &[u8], letters: &str, others: &str) -> Vec<u8> {
    let other = |letter: char| letters.chars().zip(others.chars()).find(|(known, _)| *known == letter);
    let text = String::from_utf8_lossy(text);
    text.chars()
        .map(|letter| other(letter).map_or(letter, |(_, other)| other))
        .collect::<String>()
        .into_bytes()
}

/// Returns a made-up value. Their parts are joined here, so that scanners of repositories do not report this file.
pub(crate) fn value(name: &str) -> String {
    const LETTERS: &str = "q8Zk3mXw7Lp2Vt9Rb5Nc6Ha1Jd4Gs0Fy7Ue2Ti8Wo3Pq6Bx1Cv5Zl9Mk4Nj7Hr2Sd0Qg8Ea3Xu6";
    let letters = |count: usize| LETTERS.chars().cycle().take(count).collect::<String>();
    let github = ["ghp", "_", &letters(36)].concat();
    let aws = ["AKI", "A", "Z7VRQ2MN4XKT6WLP"].concat();
    let card = ["4532", "0151", "1283", "0366"];
    let phrase = "legal winner thank year wave sausage worth useful legal winner thank yellow";
    let header =
        |text: &str| String::from_utf8(encode::base64(text.as_bytes(), b"-_")).unwrap().replace('=', "");
    let pem = |end: &str| {
        let key = String::from_utf8(encode::base64(letters(480).as_bytes(), b"+/")).unwrap();
        let lines = key.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned());
        let lines = lines.collect::<Vec<_>>().join(end);
        format!("-----BEGIN {0} KEY-----{end}{lines}{end}-----END {0} KEY-----{end}", "RSA PRIVATE")
    };
    let random = |count: usize| {
        let mut state = 0x2545_f491_u32;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            // Bytes that are no text, as in an image.
            char::from((state >> 9) as u8 | 0x80)
        };
        (0..count).map(|_| next()).collect::<String>()
    };
    match name {
        "github" => github,
        "github1" => github[..18].into(),
        "github2" => github[18..].into(),
        "aws" => aws,
        "aws1" => aws[..7].into(),
        "aws2" => aws[7..14].into(),
        "aws3" => aws[14..].into(),
        "openai" => ["sk", "-proj-", &letters(48)].concat(),
        "anthropic" => ["sk", "-ant-api03-", &letters(40)].concat(),
        "stripe" => ["sk", "_live_", &letters(24)].concat(),
        "slack" => ["xox", "b-", "204918273645-3847561029384-", &letters(24)].concat(),
        "telegram" => ["7012345678", ":AA", &letters(33)].concat(),
        "shadow" => ["$6", "$", "saltsalt", "$", &letters(86)].concat(),
        "jwt" => [
            &header(r#"{"alg":"HS256","typ":"JWT"}"#),
            ".",
            &header(r#"{"sub":"7731","admin":true,"exp":1799999999}"#),
            ".",
            &letters(43),
        ]
        .concat(),
        "jwtdoc" => [
            &header(r#"{"alg":"HS256","typ":"JWT"}"#),
            ".",
            &header(r#"{"sub":"1234567890","name":"John Doe","iat":1516239022}"#),
            ".SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",
        ]
        .concat(),
        "stripedoc" => ["sk", "_test_", "4eC39HqLyjWDarjtT1zdp7dc"].concat(),
        "githubdoc" => ["gh", "p_16C7e42F292c6912E7710c838347Ae178B4a"].concat(),
        "pem" => pem("\n"),
        "pemline" => pem("\\n"),
        "own" => OWN.into(),
        "own1" => OWN[..12].into(),
        "own2" => OWN[12..].into(),
        "placeholder" => ["ghp", "_", &letters(70)[30..66]].concat(),
        "card" => card.concat(),
        "cardspaced" => card.join(" "),
        "card1" => card[..2].concat(),
        "card2" => card[2..].concat(),
        "iban" => "NL91ABNA0417164300".into(),
        "ibanspaced" => "NL91 ABNA 0417 1643 00".into(),
        "phrase" => phrase.into(),
        "phraselist" => phrase.split(' ').map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", "),
        "phrasenumbered" => {
            phrase.split(' ').enumerate().map(|(at, word)| format!("{}. {word}\n", at + 1)).collect()
        }
        "wif" => ["5HueCGU8rMjxEXxiPuD5BDku4MkFqe", "Zyd4dZ1jvhTVqvbTLvyTJ"].concat(),
        "eth" => "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318".into(),
        "prose" => "The ship leaves the harbor in the morning and returns at night. ".repeat(140),
        "bytes64" => {
            format!(
                "{:?}",
                random(200).chars().map(|letter| u32::from(letter) * 7 % 256).take(64).collect::<Vec<_>>()
            )
        }
        "random32" => random(32),
        "random64" => random(64),
        "random600" => random(600),
        "random3000" => random(3000),
        // `lN` are N letters and digits, `hN` are N hexadecimal digits.
        other => match (&other[..1], other[1..].parse()) {
            ("l", Ok(count)) => letters(count),
            ("h", Ok(count)) => "4c0883a69102937d6231471b5dbb6204".chars().cycle().take(count).collect(),
            _ => panic!("unknown value {other}"),
        },
    }
}
