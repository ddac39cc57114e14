use super::*;

#[test]
fn offsets_lie_above_four_gib_and_are_found_by_any_part() {
    let mut offsets = FakeOffsets::new();
    let span = offsets.add(7, 10_000).unwrap();
    assert!(span.start() >= 1 << 32 && span.len() == 12288);
    assert_eq!(offsets.add(7, 50), Ok(span), "adding again changes nothing");
    assert_eq!(offsets.lookup(span.start() + 4096, 8192), Some((7, span)));
    assert_eq!(offsets.lookup(span.start() + 4096, 8193), None);
    assert_eq!(offsets.lookup(u64::MAX, 2), None);
    assert_eq!(offsets.lookup_exact(span.start() + 4096, 4096), None);
    assert_eq!(offsets.lookup_exact(span.start(), 4096), Some(7));
    offsets.remove(7);
    offsets.remove(7);
    assert_eq!(offsets.lookup(span.start(), 1), None);
}

#[test]
fn grants_are_counted_per_client_and_outlive_offsets() {
    let mut offsets = FakeOffsets::new();
    assert_eq!(offsets.verify(1, 10), Err(AccessDenied));
    offsets.allow(1, 10);
    offsets.allow(1, 10);
    offsets.allow_once(1, 10);
    offsets.allow_once(1, 11);
    offsets.add(1, 4096).unwrap();
    offsets.remove(1);
    offsets.revoke(1, 10);
    assert!(offsets.is_allowed(1, 10));
    offsets.revoke(1, 10);
    assert!(!offsets.is_allowed(1, 10));
    offsets.revoke(1, 12);
    offsets.revoke(1, 11);
    assert!(!offsets.is_allowed(1, 11));
}
