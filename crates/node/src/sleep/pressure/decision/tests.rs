use proptest::prelude::*;

use super::*;

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (proptest::option::of(0_u64..90), any::<bool>(), 1_u64..40);
    proptest::collection::vec(one, 0..30).prop_map(|all| {
        let candidate = |(number, (idle, suspends, after)): (usize, (Option<u64>, bool, u64))| Candidate {
            uid: number.to_string(),
            idle: idle.map(Duration::from_secs),
            tier: if suspends { Tier::Suspended } else { Tier::PagedOut },
            after: Duration::from_secs(after),
        };
        all.into_iter().enumerate().map(candidate).collect()
    })
}

/// One measurement: seconds since the last one, whether memory is short, whether swap has room, and the Pods.
type Measured = (u64, bool, bool, Vec<Candidate>);

fn measurements() -> impl Strategy<Value = Vec<Measured>> {
    proptest::collection::vec((0_u64..20, any::<bool>(), any::<bool>(), candidates()), 1..60)
}

proptest! {
    #[test]
    fn only_the_longest_idle_is_brought_down_and_only_while_memory_is_short(all in measurements()) {
        let (mut decision, mut now) = (Decision::default(), Instant::now());
        let mut history: Vec<(Instant, String)> = Vec::new();
        for (seconds, is_short, swap_has_room, pods) in all {
            now += Duration::from_secs(seconds);
            let recent: Vec<_> = history.iter().filter(|(at, _)| now - *at < WINDOW).collect();
            let is_fit = |pod: &&Candidate| {
                pod.idle.is_some_and(|idle| idle >= LEAST_IDLE || idle >= pod.after)
                    && (swap_has_room || pod.tier == Tier::Suspended)
            };
            let is_new = |pod: &&Candidate| history.iter().all(|(_, uid)| *uid != pod.uid);
            let longest_new = pods.iter().filter(is_fit).filter(is_new).filter_map(|pod| pod.idle).max();
            let has_turn = is_short && recent.len() < MOST_BEGUN;
            let chosen = decision.next(now, (is_short, swap_has_room), &pods);
            prop_assert!(chosen.is_none() || has_turn);
            prop_assert!(!has_turn || chosen.and_then(|pod| pod.idle) >= longest_new, "{:?}", chosen);
            if let Some(pod) = chosen {
                prop_assert!(is_fit(&pod), "{:?}", pod);
                prop_assert!(recent.iter().all(|(_, uid)| *uid != pod.uid), "{:?}", pod);
                decision.is_down(&pod.uid, now);
                history.push((now, pod.uid.clone()));
            }
        }
    }

    #[test]
    fn pod_that_was_tried_without_effect_is_passed_over(pods in candidates()) {
        let (mut decision, now) = (Decision::default(), Instant::now());
        let mut order = Vec::new();
        while let Some(pod) = decision.next(now, (true, true), &pods) {
            decision.tried(&pod.uid, now);
            order.push(pod.idle);
        }
        prop_assert!(order.is_sorted_by(|one, next| one >= next), "{:?}", order);
        let may = pods.iter().filter(|pod| pod.idle.is_some_and(|idle| idle >= pod.least_idle()));
        prop_assert_eq!(order.len(), may.count());
    }
}

#[test]
fn pod_that_was_brought_down_is_not_tried_again_before_its_next_use() {
    let (mut decision, began) = (Decision::default(), Instant::now());
    let at = |seconds: u64| began + Duration::from_secs(seconds);
    let mut chosen = |seconds: u64, idle: u64| {
        let idle = Some(Duration::from_secs(idle));
        let after = Duration::from_secs(3600);
        let pods = [Candidate { uid: "u".into(), idle, tier: Tier::PagedOut, after }];
        let is_chosen = decision.next(at(seconds), (true, true), &pods).is_some();
        if is_chosen {
            decision.is_down("u", at(seconds));
        }
        is_chosen
    };
    assert!(chosen(0, 20));
    assert!(!chosen(70, 90), "its memory stayed in RAM, and would again");
    assert!(!chosen(200, 220));
    assert!(chosen(210, 15), "it was used since");
}

#[test]
fn pod_sleeps_only_as_its_annotations_allow() {
    let second = |number: u64| Some(Duration::from_secs(number));
    let times = |freeze_after, page_out_after, suspend_after| IdleTimes {
        freeze_after,
        page_out_after,
        suspend_after,
        activity_port: None,
    };
    let (native, gvisor) = (Handler::Native, Handler::Gvisor);
    for (times, handler, has_sandbox, expected) in [
        (times(second(5), second(9), None), native, false, Some((Tier::PagedOut, 5))),
        (times(second(5), second(9), second(20)), native, true, Some((Tier::PagedOut, 5))),
        (times(second(5), None, second(20)), native, true, None),
        (times(None, None, second(20)), native, true, None),
        (times(second(5), second(9), None), gvisor, true, None),
        (times(second(5), None, second(20)), gvisor, true, Some((Tier::Suspended, 20))),
        (times(None, None, second(20)), gvisor, false, None),
        (IdleTimes::default(), native, true, None),
        (IdleTimes::default(), gvisor, true, None),
    ] {
        let expected = expected.map(|(tier, after)| (tier, Duration::from_secs(after)));
        assert_eq!(tier(&times, handler, has_sandbox), expected, "{times:?} {handler:?} {has_sandbox}");
    }
}
