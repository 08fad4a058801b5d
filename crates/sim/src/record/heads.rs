//! The heads of the tables that a run fills itself.

use super::{Kind, Table};

pub(crate) fn flow_samples_table() -> Table {
    Table::new(
        "flow_samples",
        &[
            ("time_ns", Kind::U64),
            ("flow", Kind::U32),
            ("cwnd_bytes", Kind::U64),
            ("ssthresh_bytes", Kind::MaybeU64),
            ("srtt_ns", Kind::MaybeU64),
            ("in_flight_bytes", Kind::U64),
            ("acked_bytes", Kind::U64),
            ("delivered_bytes", Kind::U64),
        ],
    )
}

pub(crate) fn direction_samples_table() -> Table {
    Table::new(
        "direction_samples",
        &[
            ("time_ns", Kind::U64),
            ("direction", Kind::U8),
            ("queue_bytes", Kind::U64),
            ("queue_packets", Kind::U64),
            ("in_flight_bytes", Kind::U64),
            ("sent_bytes", Kind::U64),
            ("sent_packets", Kind::U64),
            ("delivered_bytes", Kind::U64),
            ("dropped_packets_queue_full", Kind::U64),
            ("dropped_packets_bit_error", Kind::U64),
        ],
    )
}

pub(crate) fn directions_table() -> Table {
    Table::new(
        "directions",
        &[
            ("direction", Kind::U8),
            ("received_packets", Kind::U64),
            ("received_bytes", Kind::U64),
            ("sent_packets", Kind::U64),
            ("sent_bytes", Kind::U64),
            ("delivered_packets", Kind::U64),
            ("delivered_bytes", Kind::U64),
            ("dropped_packets_queue_full", Kind::U64),
            ("dropped_bytes_queue_full", Kind::U64),
            ("dropped_packets_bit_error", Kind::U64),
            ("dropped_bytes_bit_error", Kind::U64),
            ("held_packets", Kind::U64),
            ("held_bytes", Kind::U64),
            ("busy_ns", Kind::U64),
            ("queue_bytes_max", Kind::U64),
        ],
    )
}
