//! How punctual the packets of a run were.

use crate::lateness::Lateness;

/// How punctual a driver was.
#[derive(Clone, Debug, Default)]
pub struct Punctuality {
    /// How much later than on the modelled link packets may have been: the uncertainty of their
    /// arrival times plus the delay of their delivery. In a driver, since the last window was
    /// closed; in a report, since the lab was brought up.
    pub lateness: Lateness,
    /// The uncertainty of arrival times alone.
    pub wait: Lateness,
    /// Packets that the receiving kernel rejected.
    pub rejected: u64,
    /// Super-packets that could not be segmented.
    pub unsegmented: u64,
    /// Packets longer than the MTU, which were dropped.
    pub too_long: u64,
    /// Packets with a timestamp later than the read.
    pub future_stamps: u64,
    /// How often the real-time clock, which timestamps use, was set.
    pub clock_steps: u64,
}

impl Punctuality {
    /// The counts by name.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 5] {
        [
            ("rejected_packets", self.rejected),
            ("unsegmented_packets", self.unsegmented),
            ("too_long_packets", self.too_long),
            ("future_stamped_packets", self.future_stamps),
            ("clock_steps", self.clock_steps),
        ]
    }
}
