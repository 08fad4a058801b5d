//! What the rules need of the kernel: modules, each of which it may lack.

use std::io;

use bentpipe_sys::nftables::{BaseChain, Batch, Expression, Field, Hook};

use super::matches::{Expressions, accept, mark, tcp, to_listener, transparent_socket};

/// A table that is never made.
const TABLE: &str = "bentpipe_check";
const MANGLE: i32 = -150;
const SRC_NAT: i32 = 100;

/// A part of rules, and what has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelPart {
    /// Its word in the language of nft(8).
    pub word: &'static str,
    /// The kernel's module.
    pub module: &'static str,
}

/// All parts for which a kernel has modules.
pub const KERNEL_PARTS: [KernelPart; 6] = [
    KernelPart { word: "socket", module: "nft_socket" },
    KernelPart { word: "tproxy", module: "nft_tproxy" },
    KernelPart { word: "ct", module: "nft_ct" },
    KernelPart { word: "log", module: "nft_log" },
    KernelPart { word: "symhash", module: "nft_hash" },
    KernelPart { word: "snat", module: "nft_nat" },
];

impl KernelPart {
    /// Lets the kernel say whether it takes a rule with this part. It may load the module, and changes nothing else.
    ///
    /// # Errors
    /// Why it does not. It requires `CAP_NET_ADMIN`.
    pub fn validate(&self) -> io::Result<()> {
        let is_nat = self.word == "snat";
        let (hook, priority) =
            if is_nat { (Hook::Postrouting, SRC_NAT) } else { (Hook::Prerouting, MANGLE) };
        let mut batch = Batch::new(TABLE);
        batch.add_table();
        batch.add_chain("tried", Some(BaseChain { hook, priority, is_nat }));
        batch.add_rule("tried", &self.rule());
        batch.validate()
    }

    fn rule(&self) -> Expressions {
        let zero = || Expression::Immediate(vec![0; 4], 0);
        match self.word {
            "socket" => [transparent_socket(), vec![accept()]].concat(),
            "tproxy" => [mark(1), to_listener(1, false)].concat(),
            "ct" => vec![zero(), Expression::SetZone],
            "log" => vec![Expression::Log { group: 1, bytes: 1 }],
            "symhash" => vec![Expression::Load(Field::SymmetricHash { modulus: 2 }, 0)],
            _ => [tcp(), vec![zero(), Expression::SourceNat { is_ipv6: false }]].concat(),
        }
    }
}
