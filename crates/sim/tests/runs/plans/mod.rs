//! Random small plans, for properties of every plan.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::network::{network, put};

fn series(values: std::ops::Range<u64>) -> impl Strategy<Value = Value> {
    let steps = prop::collection::vec((1..2_000_000_000u64, values.clone()), 0..4);
    (values, steps).prop_map(|(first, later)| {
        if later.is_empty() {
            return json!({"kind": "constant", "value": first});
        }
        let mut steps: std::collections::BTreeMap<u64, u64> = later.into_iter().collect();
        steps.insert(0, first);
        let steps: Vec<_> = steps.into_iter().collect();
        json!({"kind": "steps", "steps": steps})
    })
}

/// A limit in packets or bytes, and any limit.
fn limits() -> impl Strategy<Value = (Value, Value)> {
    let counted = prop_oneof![
        (1_500..100_000u64).prop_map(|n| json!({"unit": "bytes", "value": n})),
        // The largest packet fits: 1,500 bytes in cells with 30 bytes of payload and 20 of
        // overhead.
        (2_800..100_000u64).prop_map(|n| json!({"unit": "link_bytes", "value": n})),
        (1..60u64).prop_map(|n| json!({"unit": "packets", "value": n})),
    ];
    let other = prop_oneof![
        (1_000_000..500_000_000u64).prop_map(|n| json!({"unit": "time_ns", "value": n})),
        Just(json!({"unit": "unlimited"})),
    ];
    (counted, other)
}

/// The classes of each strict priority queue, and of flows.
const CLASSES: u8 = 3;

fn queue() -> impl Strategy<Value = Value> {
    let numbers = (1..30u64, 1..30u64, 0.0..1.0f64, 1..1_000u32, any::<bool>());
    (limits(), limits(), numbers, 0..13u8).prop_map(
        |((counted, other), (per_flow, unlimited), (low, more, share, weight, flag), discipline)| {
            let any = if flag { &counted } else { &other };
            let held = if unlimited["unit"] == "unlimited" { &unlimited } else { &counted };
            match discipline {
                0..3 => json!({"discipline": "drop_tail", "limit": any}),
                3 => json!({
                    "discipline": "red", "limit": any, "unit": if flag { "packets" } else { "bytes" },
                    "min_threshold": if flag { low } else { 1_000 * low },
                    "max_threshold": if flag { low + more } else { 1_000 * (low + more) },
                    "max_probability": share, "weight": f64::from(weight) / 1_000.0, "gentle": flag,
                    "mean_packet_bytes": 40 + weight, "ecn": !flag,
                }),
                4 => json!({
                    "discipline": "per_flow_drop_tail", "limit": any, "per_flow_limit": per_flow,
                }),
                5 => json!({
                    "discipline": "early_packet_discard", "limit": counted, "threshold": share,
                }),
                6 => json!({
                    "discipline": "selective_drop", "limit": counted, "threshold": share,
                    "load_ratio": 0.5 + share,
                }),
                7 => json!({
                    "discipline": "codel", "limit": held, "target_ns": 1_000_000 * low,
                    "interval_ns": 20_000_000 * more, "ecn": flag,
                }),
                8 => json!({
                    "discipline": "fq_codel", "limit": held, "target_ns": 1_000_000 * low,
                    "interval_ns": 20_000_000 * more, "quantum_bytes": weight + 40,
                    "queues": 1 << (low % 8), "ecn": flag,
                }),
                9..11 => json!({"discipline": "strict_priority", "limit": held, "classes": CLASSES}),
                _ => {
                    let rate_bps = 100_000 * u64::from(weight);
                    let codel = json!({
                        "discipline": "codel", "limit": held, "target_ns": 1_000_000 * low,
                        "interval_ns": 20_000_000 * more, "ecn": flag,
                    });
                    let classes = (0..CLASSES).map(|number| {
                        json!({
                            "queue": (number == 0).then_some(&codel),
                            "reserved_bps": (number == 1).then_some(rate_bps), "weight": 1 + number,
                            "ceiling_bps": (flag && number < 2).then_some(2 * rate_bps),
                        })
                    });
                    json!({
                        "discipline": "shared_rate", "limit": held,
                        "classes": classes.collect::<Vec<_>>(),
                    })
                }
            }
        },
    )
}

fn framing() -> impl Strategy<Value = Value> {
    let overhead = json!({
        "header_bytes": 8, "min_bytes": 0, "cells": null, "expansion": [1, 1], "inter_frame_bytes": 0,
    });
    // Large enough that most frames of cells pass the worst channel.
    let cells = (0..40u32, 30..100u32, 0..20u32, 0..10u32);
    prop_oneof![
        Just(overhead),
        (0..40u32, 0..80u32, 1_000..1_500u64, 0..30u32).prop_map(
            |(header, min, grown, outside)| {
                json!({
                    "header_bytes": header, "min_bytes": min, "cells": null,
                    "expansion": [grown, 1_000], "inter_frame_bytes": outside,
                })
            }
        ),
        cells.prop_map(|(header, payload, tax, outside)| {
            json!({
                "header_bytes": header, "min_bytes": 0, "inter_frame_bytes": outside,
                "cells": {"payload_bytes": payload, "cell_bytes": payload + tax},
                "expansion": [90, 87],
            })
        }),
    ]
}

fn pep() -> impl Strategy<Value = Value> {
    let numbers = (0..100_000u64, 1..4u64, prop::option::of(1..50_000u64));
    (tcp(), tcp(), numbers, any::<bool>()).prop_map(
        |(lan, link, (buffer, connections, low), early)| {
            json!({
                "kind": "pep", "lan_tcp": lan, "link_tcp": link, "notsent_lowat_bytes": low,
                "buffer_bytes": buffer, "connections": connections, "early_accept": early,
            })
        },
    )
}

/// No function, a PEP, or a processor that is fast enough to pass a SYN within a day; or both.
fn gateway() -> impl Strategy<Value = Value> {
    let processor = (100..20_000u64, 0..1_000u64, 1..60u64);
    let processor = prop::option::weighted(0.3, processor);
    let pep = prop::option::weighted(0.2, pep());
    (processor, pep, any::<bool>()).prop_map(|(processor, pep, pep_first)| {
        let processor = processor.map(|(rate, byte, buffer)| {
            json!({
                "kind": "processor", "packets_per_second": rate, "per_byte_ns": byte,
                "buffer_packets": buffer,
            })
        });
        let functions = if pep_first { [pep, processor] } else { [processor, pep] };
        Value::Array(functions.into_iter().flatten().collect())
    })
}

/// Error rates low enough that TCP connections complete.
fn error_rates() -> impl Strategy<Value = (f64, f64)> {
    let bits = prop::sample::select(vec![0.0, 1e-6, 3e-5]);
    (bits, prop::sample::select(vec![0.0, 0.01, 0.3]))
}

fn channel_state() -> impl Strategy<Value = Value> {
    (error_rates(), 1_000_000..5_000_000_000u64).prop_map(|((bits, frames), mean)| {
        json!({"bit_error_rate": bits, "loss_rate": frames, "mean_duration_ns": mean})
    })
}

fn error_series(changes: Vec<(u64, (f64, f64))>) -> Value {
    let mut at_ns = 0;
    let mut steps = vec![json!({"at_ns": 0, "bit_error_rate": 0.0, "loss_rate": 0.0})];
    for (gap, (bits, frames)) in changes {
        at_ns += gap;
        steps.push(json!({"at_ns": at_ns, "bit_error_rate": bits, "loss_rate": frames}));
    }
    json!({"kind": "error_series", "steps": steps})
}

fn channel() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"kind": "clear"})),
        prop::sample::select(vec![1e-7, 1e-6, 1e-5, 3e-5])
            .prop_map(|rate| json!({"kind": "bit_errors", "bit_error_rate": rate})),
        (channel_state(), channel_state())
            .prop_map(|(good, bad)| json!({"kind": "gilbert_elliott", "good": good, "bad": bad})),
        prop::collection::vec((1..3_000_000_000u64, error_rates()), 0..6).prop_map(error_series),
    ]
}

fn direction() -> impl Strategy<Value = Value> {
    let jitter = prop_oneof![3 => Just(0), 1 => 0..50_000_000u64];
    let delay = (series(0..400_000_000), jitter);
    (series(100_000..10_000_000), delay, framing(), queue(), channel()).prop_map(
        |(rate, (delay, jitter), framing, queue, channel)| {
            json!({
                "rate_bps": rate, "delay_ns": delay, "jitter_ns": jitter, "framing": framing,
                "queue": queue, "channel": channel,
            })
        },
    )
}

/// Any TCP host: each congestion control, in the variant of the RFCs or of Linux.
pub(crate) fn tcp() -> impl Strategy<Value = Value> {
    let controls = vec!["reno", "newreno", "cubic", "bbr", "hybla", "vegas", "westwood"];
    let control = prop::sample::select(controls);
    let flags = prop::array::uniform11(any::<bool>());
    (control, flags, 500..1_460u16, 1..12u32, 8_000..400_000u64, 1..4u32).prop_map(
        |(control, flags, mss, window, buffer, every)| {
            let [sack, timestamps, scaling, limited, rack, prr, hystart, coarse, ecn, memory, linux] =
                flags;
            json!({
                "mss_bytes": mss, "initial_window_segments": window,
                "congestion_control": control, "sack": sack, "timestamps": timestamps,
                "window_scaling": scaling, "send_buffer_bytes": 300_000,
                "receive_buffer_bytes": buffer, "receive_buffer_initial_bytes": 8_000,
                "receive_buffer_counts": if memory { "memory" } else { "window" },
                "delayed_ack_segments": every, "delayed_ack_timeout_ns": 100_000_000,
                "quick_ack_segments": u32::from(coarse), "rto_initial_ns": 1_000_000_000,
                "rto_min_ns": 200_000_000, "rto_min_bounds": if rack { "variance" } else { "timeout" },
                "rto_max_ns": 60_000_000_000u64,
                "clock_granularity_ns": if coarse { 500_000_000 } else { 1_000_000 },
                "slow_start_segments_per_ack": if hystart { 65_535 } else { 1 },
                "avoidance_counting": if coarse { "acks" } else { "bytes" },
                "limited_transmit": limited, "rack_tlp": rack, "prr": prr, "hystart": hystart,
                "ecn": ecn, "stack": if linux { "linux" } else { "rfc" },
            })
        },
    )
}

fn draw(max: u64) -> impl Strategy<Value = Value> {
    (0..4u8, 1..max, 1..max, 0.1..3.0f64).prop_map(move |(kind, one, other, spread)| {
        let (min, max) = (one.min(other), one.max(other));
        match kind {
            0 => json!({"kind": "constant", "value": one}),
            1 => json!({"kind": "exponential", "mean": one}),
            2 => json!({"kind": "pareto", "min": min, "shape": spread, "max": max}),
            _ => json!({"kind": "lognormal", "median": min, "sigma": spread, "max": max}),
        }
    })
}

fn requests() -> impl Strategy<Value = Value> {
    let sizes = (1..5_000u64, draw(60_000), draw(1_000_000_000));
    (sizes, prop::option::of(1..6u64), any::<bool>(), tcp(), tcp()).prop_map(
        |((request, response, think), exchanges, keep, server, client)| {
            json!({
                "kind": "request_response", "request_bytes": request, "response_bytes": response,
                "think_ns": think, "exchanges": exchanges, "keep_connection": keep,
                "server": server, "client": client,
            })
        },
    )
}

fn pages() -> impl Strategy<Value = Value> {
    let sizes = (1..5_000u64, draw(60_000), draw(20_000), draw(12), draw(1_000_000_000));
    let tls = prop::sample::select(vec![None, Some("1.2"), Some("1.3")]);
    let shape = (any::<bool>(), 1..8u32, tls, any::<bool>());
    (sizes, shape, prop::option::of(1..4u64), tcp(), tcp()).prop_map(
        |(sizes, (is_two, connections, tls, dns), pages, server, client)| {
            let (request, document, object, objects, think) = sizes;
            json!({
                "kind": "web_page", "pages": pages, "think_ns": think, "objects": objects,
                "document_bytes": document, "object_bytes": object, "request_bytes": request,
                "http": if is_two { "2" } else { "1.1" }, "connections": connections, "tls": tls,
                "dns": dns, "server": server, "client": client,
            })
        },
    )
}

/// Flows of one conference on the first terminals; none with a single terminal.
fn conference(terminals: usize, rate: u64, payload: u32, duration: u64) -> Vec<Value> {
    let participants = if terminals < 2 { 0 } else { terminals };
    let participant = |terminal: usize| {
        json!({
            "name": format!("participant-{terminal}"), "terminal": terminal,
            "direction": "return", "start_ns": 1_000_000 * terminal, "start_jitter_ns": 0,
            "priority": 0, "splittable": true,
            "workload": {
                "kind": "conference", "conference": 7, "rate_bps": rate, "payload_bytes": payload,
                "duration_ns": duration,
            },
        })
    };
    (0..participants).map(participant).collect()
}

fn workload() -> impl Strategy<Value = Value> {
    let amount = prop_oneof![
        (1..300_000u64).prop_map(|n| json!({"unit": "bytes", "value": n})),
        (1..3_000_000_000u64).prop_map(|n| json!({"unit": "duration_ns", "value": n})),
    ];
    prop_oneof![
        3 => (amount, tcp(), tcp()).prop_map(|(amount, sender, receiver)| {
            json!({"kind": "bulk", "amount": amount, "sender": sender, "receiver": receiver})
        }),
        2 => requests(),
        1 => video(),
        2 => pages(),
        2 => downloads(),
        1 => voice(),
        1 => (8_000..2_000_000u64, 100..1_400u32, 1..4_000_000_000u64).prop_map(|(rate, size, ns)| {
            json!({
                "kind": "constant_rate", "rate_bps": rate, "payload_bytes": size,
                "duration_ns": ns,
            })
        }),
    ]
}

fn video() -> impl Strategy<Value = Value> {
    let times = (1..6_000_000_000u64, 50_000_000..4_000_000_000u64, 1..6_000_000_000u64);
    let media = (8_000..3_000_000u64, times, 0..8_000_000_000u64);
    (media, 1..5_000u64, tcp(), tcp()).prop_map(|(media, request, server, client)| {
        let (rate, (duration, segment, start_up), more) = media;
        json!({
            "kind": "video", "request_bytes": request, "server": server, "client": client,
            "media": {
                "rate_bps": rate, "duration_ns": duration, "segment_ns": segment,
                "buffer_ns": start_up.div_ceil(segment) * segment + more, "start_up_ns": start_up,
            },
        })
    })
}

/// A channel. Its servers are all hosts of the hub: see [`with_servers`].
fn downloads() -> impl Strategy<Value = Value> {
    let sizes = prop::collection::vec((1..60_000u64, 1..100u64), 1..5);
    let jitter = prop_oneof![Just(0), 1..20_000_000u64];
    let times = (jitter.clone(), jitter);
    (sizes, prop::option::of(1..20u64), times, tcp(), tcp()).prop_map(
        |(sizes, connections, (of_server, of_client), server, client)| {
            json!({
                "kind": "channel", "servers": [], "sizes": sizes, "connections": connections,
                "server_jitter_ns": of_server, "client_jitter_ns": of_client, "server": server,
                "client": client,
            })
        },
    )
}

/// A flow with the servers of a channel, if it is one, which has no other host in the world.
fn with_servers(mut flow: Value, hosts: &[Value]) -> Value {
    if flow["workload"]["kind"] == "channel" {
        let servers = (0..hosts.len()).filter(|&host| hosts[host]["gateway"] == 0);
        flow["workload"]["servers"] = servers.collect();
        flow["world_host"] = Value::Null;
        flow["direction"] = json!("forward");
    }
    flow
}

fn voice() -> impl Strategy<Value = Value> {
    let spurts = (1_000_000..3_000_000_000u64, 1_000_000..3_000_000_000u64);
    let spurts = prop::option::of(
        spurts.prop_map(|(talk, pause)| json!({"talk_ns": talk, "pause_ns": pause})),
    );
    (1..4_000_000_000u64, 0..200_000_000u64, spurts).prop_map(|(ns, buffer, spurts)| {
        json!({
            "kind": "voice", "codec": "g711", "rate_bps": 68_800, "payload_bytes": 172,
            "duration_ns": ns, "jitter_buffer_ns": buffer, "talk_spurts": spurts,
        })
    })
}

/// A branch from the hub to a terminal: plain, or with a delay and errors.
fn branch() -> impl Strategy<Value = Value> {
    let special = (0..50_000_000u64, channel());
    prop::option::weighted(0.3, special).prop_map(|special| {
        let (delay, channel) = special.unwrap_or((0, json!({"kind": "clear"})));
        json!({"delay_ns": delay, "channel": channel})
    })
}

/// Distant hosts, each behind a random gateway.
fn hosts() -> impl Strategy<Value = Vec<(prop::sample::Index, Value)>> {
    let rate = prop::option::of(100_000..10_000_000u64);
    let host = (any::<prop::sample::Index>(), 0..200_000_000u64, 0..5_000_000u64, rate);
    prop::collection::vec(host, 0..4).prop_map(|hosts| {
        let host = |(number, (gateway, delay, jitter, rate))| {
            let name = format!("host-{number}");
            let host = json!({
                "name": name, "delay_ns": delay, "jitter_ns": jitter, "rate_bps": rate,
            });
            (gateway, host)
        };
        (0..).zip(hosts).map(host).collect()
    })
}

/// The aggregators of all gateways, or of none: an aggregator needs its peer.
fn aggregators() -> impl Strategy<Value = Vec<Value>> {
    let numbers = (200..1_500u32, 28..1_500u32, 0..30_000_000u64);
    let classes = prop::option::of(prop::collection::btree_set(0..CLASSES, 1..3));
    let aggregator = (numbers, classes).prop_map(|((frame, packet, hold), classes)| {
        json!({
            "kind": "aggregator", "frame_size_bytes": frame, "packet_size_bytes": packet.min(frame),
            "hold_time_ns": hold, "classes": classes,
        })
    });
    prop::option::weighted(0.4, prop::collection::vec(aggregator, 4))
        .prop_map(Option::unwrap_or_default)
}

/// The functions of a gateway, with its aggregator, if any, as the last one, or as the first one but for
/// a PEP, which must be before it.
fn with_aggregator(mut functions: Value, number: usize, all: &[Value], is_last: bool) -> Value {
    if let (Some(aggregator), Some(functions)) = (all.get(number), functions.as_array_mut()) {
        let pep = functions.iter().position(|function| function["kind"] == "pep");
        let first = pep.map_or(0, |pep| pep + 1);
        let place = if is_last { functions.len() } else { first };
        functions.insert(place, aggregator.clone());
    }
    functions
}

/// The hosts in the order of their gateways.
fn placed(hosts: Vec<(prop::sample::Index, Value)>, gateways: usize) -> Vec<Value> {
    let place = |(gateway, mut host): (prop::sample::Index, Value)| {
        host["gateway"] = json!(gateway.index(gateways));
        host
    };
    let mut hosts: Vec<_> = hosts.into_iter().map(place).collect();
    hosts.sort_by_key(|host| host["gateway"].as_u64());
    hosts
}

/// The host of a flow behind a gateway: none, the first, or a random one.
fn choice(hosts: &[Value], gateway: usize, draw: usize) -> Value {
    match (hosts.iter().position(|host| host["gateway"] == json!(gateway)), draw % 3) {
        (Some(first), 1) => json!({"kind": "named", "host": first}),
        (Some(_), 2) => json!({"kind": "random"}),
        _ => Value::Null,
    }
}

/// A small plan: a few flows of any kind for a few seconds, over any link with one or more
/// terminals.
pub(crate) fn plan() -> impl Strategy<Value = Value> {
    let heading = prop::sample::select(vec!["forward", "return"]);
    let place = (heading, any::<prop::sample::Index>(), 0..CLASSES);
    let jitter = prop_oneof![Just(0), 1..500_000_000u64];
    let flow = (place, (0..1_000_000_000u64, jitter), prop::bool::weighted(0.8), workload());
    let flows = prop::collection::vec(flow, 1..5);
    let terminals = prop::collection::vec((branch(), gateway(), direction()), 1..4);
    // One for each possible gateway.
    let aggregators = (aggregators(), any::<bool>());
    let run = (prop::option::of(20_000_000..700_000_000u64), any::<bool>(), 1..20u64);
    let meeting =
        prop::option::weighted(0.4, (8_000..500_000u64, 40..1_400u32, 1..2_000_000_000u64));
    (direction(), gateway(), aggregators, terminals, hosts(), flows, meeting, run).prop_map(
        |(forward, hub, aggregators, terminals, hosts, flows, meeting, run)| {
            let ((aggregators, is_last), (sampling, events, seconds)) = (aggregators, run);
            let hub = with_aggregator(hub, 0, &aggregators, is_last);
            let hosts = placed(hosts, 1 + terminals.len());
            let mut flows: Vec<_> = (1..)
                .zip(flows)
                .map(|(n, ((heading, terminal, priority), (start, jitter), splittable, workload))| {
                    let terminal = terminal.index(terminals.len());
                    let flow = json!({
                        "name": format!("flow-{n}"), "terminal": terminal,
                        "direction": heading, "start_ns": start, "start_jitter_ns": jitter, "priority": priority,
                        "splittable": splittable,
                        "world_host": choice(&hosts, 0, n),
                        "island_host": choice(&hosts, 1 + terminal, n / 2),
                        "workload": workload,
                    });
                    with_servers(flow, &hosts)
                })
                .collect();
            if let Some((rate, payload, duration)) = meeting {
                flows.extend(conference(terminals.len(), rate, payload, duration));
            }
            let terminals =
                (1usize..).zip(terminals).map(|(gateway, (mut branch, functions, back))| {
                    branch["gateway"] = json!(gateway);
                    let functions = with_aggregator(functions, gateway, &aggregators, is_last);
                    [branch, functions, back]
                });
            let plan = json!({
                "format_version": 4, "stop_ns": seconds * 1_000_000_000 + 1,
                "sample_interval_ns": sampling, "packet_events": events, "hosts": hosts,
                "flows": flows,
            });
            put(plan, network(&hub, &forward, terminals.collect()))
        },
    )
}
