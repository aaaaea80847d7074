//! JSON encoding of protocol buffers for values without a form in plain JSON: 64-bit numbers as strings,
//! bytes in Base64, enumerations by name.

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Given<'a> {
    Unsigned(u64),
    Signed(i64),
    #[serde(borrow)]
    Text(std::borrow::Cow<'a, str>),
}

/// Decodes a number, or a number as a string.
pub(super) fn lenient<'de, D: Deserializer<'de>, N: TryFrom<i128>>(from: D) -> Result<N, D::Error> {
    let number = match Given::deserialize(from)? {
        Given::Unsigned(number) => i128::from(number),
        Given::Signed(number) => i128::from(number),
        Given::Text(text) => {
            text.parse().map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &"a number"))?
        }
    };
    N::try_from(number).map_err(|_| D::Error::custom(format!("the number {number} is out of range")))
}

#[allow(clippy::trivially_copy_pass_by_ref)] // Signature required by serde.
pub(super) fn as_text<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(number)
}

pub(super) mod base64 {
    use ::base64::Engine;
    use ::base64::alphabet;
    use ::base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose};
    use bytes::Bytes;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::rpc) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&general_purpose::STANDARD.encode(bytes))
    }

    /// Decodes either alphabet, padded or not.
    pub(in crate::rpc) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?.replace('-', "+").replace('_', "/");
        let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let engine = GeneralPurpose::new(&alphabet::STANDARD, lenient);
        engine.decode(text).map(Bytes::from).map_err(D::Error::custom)
    }
}

pub(super) mod signal {
    use serde::de::{Error, Unexpected};
    use serde::{Deserialize, Deserializer, Serializer};

    use super::super::messages::SIGNALS;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Number(i32),
        Name(String),
    }

    #[allow(clippy::trivially_copy_pass_by_ref)] // Signature required by serde.
    pub(in crate::rpc) fn serialize<S: Serializer>(number: &i32, to: S) -> Result<S::Ok, S::Error> {
        match SIGNALS.iter().find(|(_, signal)| *signal as i32 == *number) {
            Some((name, _)) => to.serialize_str(name),
            None => to.serialize_i32(*number),
        }
    }

    pub(in crate::rpc) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
        match Given::deserialize(from)? {
            Given::Number(number) => Ok(number),
            Given::Name(name) => SIGNALS
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, signal)| *signal as i32)
                .ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&name), &"the name of a Signal")),
        }
    }
}
