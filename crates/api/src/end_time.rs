//! Times that a user may choose. Kubernetes accepts every date to the end of the year 9999. The last day and
//! a half of that year are out of this library's range, and users who mean "never" choose dates there.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Prefixes of dates that are decoded as the latest representable time.
const LAST_DAYS: &str = "9999-12-3";

pub(crate) fn serialize<S: Serializer>(time: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
    time.serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Time>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    match text.parse::<Timestamp>() {
        Ok(time) => Ok(Some(Time(time))),
        Err(_) if text.starts_with(LAST_DAYS) => Ok(Some(Time(Timestamp::MAX))),
        Err(error) => Err(de::Error::custom(error)),
    }
}

#[cfg(test)]
mod tests {
    use crate::ClaimLifecycle;

    #[test]
    fn every_date_of_kubernetes_is_read() {
        let read = |text: &str| {
            serde_json::from_value::<ClaimLifecycle>(serde_json::json!({ "shutdownTime": text }))
                .map(|lifecycle| lifecycle.shutdown_time.unwrap().0)
        };
        let (early, late) =
            (read("0000-01-01T00:00:00Z").unwrap(), read("9999-12-31T23:59:59.999999999Z").unwrap());
        assert!(early < late);
        assert_eq!(late, jiff::Timestamp::MAX);
        assert_eq!(read("9999-12-31T23:59:59-12:00").unwrap(), late);
        assert_eq!(read("2026-01-01T01:00:00+01:00").unwrap().to_string(), "2026-01-01T00:00:00Z");
        assert!(read("tomorrow").is_err());
    }
}
