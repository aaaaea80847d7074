//! Processes that end at some step.

use super::*;

#[test]
fn a_crash_between_any_two_steps_leaves_nothing() {
    for step in 0..6 {
        let scratch = Scratch::new();
        let mut partial = scratch.images.begin(&ID).unwrap();
        if step > 0 {
            partial.take_memory(&MAIN, &scratch.memory()).unwrap();
        }
        if step > 1 {
            partial.copy_tree(&UPPER, &scratch.small_tree("upper")).unwrap();
        }
        if step > 2 {
            partial.copy_tree(&DATA, &scratch.small_tree("data")).unwrap();
        }
        if step > 3 {
            partial.seal(facts()).unwrap();
        }
        if step > 4 {
            // Its folder has its name, so it is complete.
            scratch.images.store.publish(&scratch.stored("one.partial"), &ID).unwrap();
        }
        std::mem::forget(partial);
        let again = scratch.reopen();
        assert_eq!(again.list().unwrap().len(), usize::from(step > 4), "step {step}");
        let found = again.find(&ID).unwrap();
        assert_eq!(found.is_some(), step > 4, "step {step}");
        assert_eq!(scratch.names().len(), 1 + usize::from(step > 4), "step {step}");
        if found.is_none() {
            again.begin(&ID).unwrap().finish(facts()).unwrap();
        }
    }
}

#[test]
fn what_was_being_removed_is_removed_at_the_next_start() {
    let scratch = Scratch::new();
    scratch.image(&ID);
    // A process that was killed after the image got this name.
    fs::rename(scratch.stored("one"), scratch.stored("one.0.removed")).unwrap();
    fs::write(scratch.stored("key.partial"), b"half").unwrap();
    assert!(scratch.images.find(&ID).unwrap().is_none());
    assert_eq!(scratch.images.list().unwrap(), []);
    // Another image of this id can be made and removed meanwhile.
    scratch.images.begin(&ID).unwrap().finish(facts()).unwrap();
    scratch.images.remove(&ID).unwrap();
    assert_eq!(scratch.names(), ["key", "key.partial", "one.0.removed"]);
    scratch.reopen();
    assert_eq!(scratch.names(), ["key"]);
}

#[test]
fn an_image_that_is_dropped_or_fails_leaves_nothing() {
    let scratch = Scratch::new();
    let mut partial = scratch.images.begin(&ID).unwrap();
    partial.copy_tree(&UPPER, &scratch.small_tree("upper")).unwrap();
    assert!(partial.copy_tree(&DATA, &scratch.path("absent")).is_err());
    let error = partial.finish(facts()).unwrap_err();
    assert!(error.to_string().contains("a part of it could not be copied"), "{error}");
    assert_eq!(scratch.names(), ["key"]);
    let mut partial = scratch.images.begin(&ID).unwrap();
    partial.copy_tree(&UPPER, &scratch.path("upper")).unwrap();
    drop(partial);
    assert_eq!(scratch.names(), ["key"]);
}
