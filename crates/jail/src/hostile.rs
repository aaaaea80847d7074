//! The messages between a jail's init, the warden and their callers, from any bytes: reading them neither panics nor runs
//! without end.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::channel::Received;
use crate::event::{Event, Report, Request};
use crate::warden;

/// A message as each kind that there is. What was read is written and read the same, and what passes its check has
/// nothing that the kernel would take for something else.
pub fn messages(bytes: &[u8]) {
    let message = Received::of(bytes);
    let _ = message.is_bare();
    if let Some(Request::Spawn { what, .. }) = same(&message)
        && what.check().is_ok()
    {
        let mut texts = what.argv.iter().chain(what.env.iter().flat_map(|(key, value)| [key, value]));
        assert!(what.cwd.is_absolute() && texts.all(|text| !text.contains('\0')), "{what:?}");
    }
    same::<Report>(&message);
    same::<Event>(&message);
    warden::any_message(&message);
}

/// The message as one of this kind, if it is one.
pub(crate) fn same<T: Serialize + DeserializeOwned>(message: &Received) -> Option<T> {
    let read = message.decode::<T>().ok()?;
    let written = serde_json::to_vec(&read).expect("what was read is written");
    let again = Received::of(&written).decode::<T>().expect("what was written is read");
    assert_eq!(
        serde_json::to_vec(&again).ok().as_ref(),
        Some(&written),
        "{}",
        String::from_utf8_lossy(&written)
    );
    Some(read)
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("jail_messages", super::messages);
    }
}
