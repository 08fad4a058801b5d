//! The plan of a link for tests and measurements.

use bentpipe_core::time::Duration;
use bentpipe_sim::Plan;

/// A link with the same rate and delay in both directions and unlimited queues. A plan must have
/// traffic, which a lab ignores.
///
/// # Panics
/// If the values are not valid in a plan.
#[must_use]
pub fn plain_link(rate_bps: u64, delay: Duration, bit_error_rate: f64) -> Plan {
    let channel = if bit_error_rate == 0.0 {
        r#"{"kind":"clear"}"#.to_owned()
    } else {
        format!(r#"{{"kind":"bit_errors","bit_error_rate":{bit_error_rate}}}"#)
    };
    let direction = format!(
        r#""rate_bps":{{"kind":"constant","value":{rate_bps}}},
            "jitter_ns":0,"delay_ns":{{"kind":"constant","value":{}}},
            "framing":{{"header_bytes":0,"min_bytes":0,"cells":null,"expansion":[1,1],
                        "inter_frame_bytes":0}},
            "queue":{{"discipline":"drop_tail","limit":{{"unit":"unlimited"}}}},
            "channel":{channel}"#,
        delay.as_nanos()
    );
    let no_extra_delay = r#""delay_ns":0,"channel":{"kind":"clear"}"#;
    let text = format!(
        r#"{{"format_version":4,"stop_ns":1000000000,"sample_interval_ns":null,
            "packet_events":false,"hosts":[],
            "gateways":[{{"name":"hub","functions":[]}},{{"name":"terminal","functions":[]}}],
            "directions":[
                {{"name":"forward","from":0,"to":[{{"gateway":1,{no_extra_delay}}}],{direction}}},
                {{"name":"return","from":1,"to":[{{"gateway":0,{no_extra_delay}}}],{direction}}}],
            "flows":[{{"name":"none","terminal":0,"direction":"forward","start_ns":0,"start_jitter_ns":0,"priority":0,"splittable":true,
                       "workload":{{"kind":"constant_rate","rate_bps":8000,"payload_bytes":1000,
                                    "duration_ns":1000000000}}}}]}}"#
    );
    Plan::parse(&text).expect("a plan")
}
