use std::vec::Vec;

use vrampager_addr::Span;

use super::*;

fn space(start: u64, len: u64) -> RangeAllocator {
    RangeAllocator::new(Span::new(start, len).unwrap())
}

#[test]
fn an_empty_space_is_one_hole_and_so_is_an_emptied_one() {
    let mut mm = space(0, 4096);
    assert_eq!(
        mm.holes().collect::<Vec<_>>(),
        [Span::new(0, 4096).unwrap()]
    );
    mm.reserve(Span::new(0, 4096).unwrap(), 0).unwrap();
    assert_eq!(mm.holes().count(), 0);
    assert_eq!(mm.remove(0), Span::new(0, 4096));
    assert_eq!(mm.holes().count(), 1);
    mm.check();
}
#[test]
fn modes_choose_smallest_lowest_highest_and_latest_holes() {
    let mut mm = space(0, 100);
    for start in [10, 30, 45, 60, 90] {
        mm.reserve(Span::new(start, 5).unwrap(), 0).unwrap();
    }
    // Holes: [0,10) [15,30) [35,45) [50,60) [65,90) [95,100).
    mm.remove(30);
    let mut at = |mode, size| {
        let span = mm.insert(&RangeRequest::new(size).mode(mode)).unwrap();
        mm.remove(span.start());
        span.start()
    };
    assert_eq!(at(Mode::Low, 10), 0);
    assert_eq!(at(Mode::Best, 5), 95);
    assert_eq!(at(Mode::High, 10), 80);
}
