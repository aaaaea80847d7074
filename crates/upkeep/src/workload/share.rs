//! A number of Pods, or a percentage of them.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Returns the number, or the percentage of `all`. `None` if a text is no percentage.
pub(crate) fn share(value: &IntOrString, all: i32, round_up: bool) -> Option<i32> {
    let percent: u32 = match value {
        IntOrString::Int(number) => return Some(*number),
        IntOrString::String(text) => text.strip_suffix('%')?.parse().ok()?,
    };
    // Both factors have 32 bits.
    let hundredfold = i64::from(all.max(0)) * i64::from(percent);
    let rounded = if round_up { (hundredfold + 99) / 100 } else { hundredfold / 100 };
    Some(i32::try_from(rounded).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_a_number_or_a_rounded_percentage() {
        let percent = |text: &str, all, round_up| share(&IntOrString::String(text.into()), all, round_up);
        assert_eq!(share(&IntOrString::Int(-4), 3, false), Some(-4));
        assert_eq!(percent("50%", 3, true), Some(2));
        assert_eq!(percent("50%", 3, false), Some(1));
        for (text, most) in [("4294967295%", Some(i32::MAX)), ("4294967296%", None)] {
            assert_eq!(percent(text, i32::MAX, true), most);
        }
        for other in ["", "%", "5", "-5%", "a%", "5%%"] {
            assert_eq!(percent(other, 3, true), None, "{other:?}");
        }
    }
}
