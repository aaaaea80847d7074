//! Records of refused logins. An address has one record for the first one and one for the others of a second, so that a flood
//! of them leaves room for the records of other callers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hutch_audit::Record;

use super::Audit;

/// Time for which refusals of one address are counted together.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum addresses in a window. All others share one record.
const ADDRESSES_MAX: usize = 64;

/// Refusals in the current windows.
#[derive(Clone, Default)]
pub struct Refusals(Arc<Mutex<HashMap<Option<IpAddr>, Window>>>);

/// Refusals of one address after the first one.
#[derive(Default)]
struct Window {
    count: u32,
    /// Record of the first of them with the count of one.
    last: Option<Record>,
}

impl Refusals {
    /// Records or counts a refusal. `record` returns its record, for a number of them.
    pub fn add(&self, log: &Arc<dyn Audit>, source: Option<IpAddr>, record: impl Fn(Option<u32>) -> Record) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let address = source.map(network);
        let is_known = windows.contains_key(&address);
        let address = if is_known || windows.len() < ADDRESSES_MAX { address } else { None };
        if let Some(window) = windows.get_mut(&address) {
            window.count = window.count.saturating_add(1);
            window.last.get_or_insert_with(|| record(Some(1)));
            return;
        }
        windows.insert(address, Window::default());
        drop(windows);
        let first = record(None);
        log.push(Box::new(move || first));
        let (this, log) = (self.clone(), log.clone());
        tokio::spawn(async move {
            tokio::time::sleep(WINDOW).await;
            let mut windows = this.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(window) = windows.remove(&address) else { return };
            drop(windows);
            if let Some(last) = window.last {
                log.push(Box::new(move || last.counted(window.count)));
            }
        });
    }
}

/// Returns the address, or for IPv6 its network, since one caller has many of them.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use hutch_audit::Event;
    use hutch_audit::event::LogEvent;

    use super::*;
    use crate::journal::memory::Records;

    #[tokio::test]
    async fn flood_of_refused_logins_is_folded_by_address_and_second() {
        let (refusals, records) = (Refusals::default(), Records::new(1));
        let log: Arc<dyn Audit> = records.clone();
        let record = |_: Option<u32>| Event::log(SystemTime::now(), &LogEvent::Opened).record();
        for number in 0..1000_u32 {
            refusals.add(&log, Some(IpAddr::from([10, 0, 0, 1])), record);
            let one_of_a_network = (0x2001_0db8_u128 << 96 | u128::from(number)).to_be_bytes();
            refusals.add(&log, Some(IpAddr::from(one_of_a_network)), record);
        }
        assert_eq!(records.events().len(), 2);
        tokio::time::sleep(WINDOW * 2).await;
        let counts: Vec<_> = records.events().iter().map(|event| event["count"].clone()).collect();
        assert_eq!(counts, [serde_json::Value::Null, serde_json::Value::Null, 999.into(), 999.into()]);
        // Many addresses have as many records as a window has places, and one more.
        records.clear();
        for number in 0..10_000_u32 {
            refusals.add(&log, Some(IpAddr::from(number.to_be_bytes())), record);
        }
        tokio::time::sleep(WINDOW * 2).await;
        assert_eq!(records.events().len(), ADDRESSES_MAX + 2);
    }
}
