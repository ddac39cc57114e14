/// One deliberate defect, to show that the acceptance suites see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "exported only to tests that plant one")
)]
pub enum PlantedBug {
    /// Discovery: a second open succeeds while the first is open.
    OpensTwice,
    /// Discovery: a refused open leaves the device busy after its owner has closed it.
    RefusedOpenStaysBusy,
    /// Memory: a GPU mapping of an offset into an object starts one page too early.
    MapsOnePageOff,
    /// Memory: host objects come with old content.
    HostNotZeroed,
    /// Memory: the access of a GPU mapping is not enforced.
    ReadOnlyIsWritable,
    /// Memory: an import has bytes of its own.
    ImportsACopy,
    /// Memory: what is shared with another device has bytes of its own there.
    SharesACopy,
    /// Queue: a signal overtakes the copy in front of it.
    SignalsEarly,
    /// Queue: a channel goes on behind a faulting operation.
    RunsPastFault,
    /// Queue: a wait that ran out of time reports success.
    TimeoutIsSuccess,
    /// Release: a destroyed object stays in the counters.
    DestroyKeepsCount,
    /// Release: unmapping leaves the last page of the span accessible.
    UnmapLeavesLastPage,
}
