//! Builds the ends of channels, and gives them an address for each of their servers.

use bentpipe_core::packet::{Address, FlowId};
use bentpipe_core::time::Instant;
use bentpipe_core::trace::NodeId;

use super::{Hosts, NET, Station};
use crate::node::Node;
use crate::plan::{DownloadChannel, Flow, HUB, Heading};
use crate::workload::{
    ChannelClient, ChannelConfig, ChannelSchedule, ChannelServer, Downloads, ServerAddresses,
    ServiceTimes, SizeTable,
};

impl<'a> Hosts<'a> {
    pub(super) fn channel(
        &mut self,
        flow: &Flow,
        channel: &'a DownloadChannel,
        id: FlowId,
        start: Instant,
    ) -> [Node; 2] {
        let servers = channel.servers.len() as u32;
        let first = (2 * self.plan.flows.len() + self.server_stations.len()) as u32;
        let addresses = ServerAddresses {
            servers: Address(first),
            clients: Address(first + servers),
            count: servers,
        };
        let sizes = self.size_table(&channel.sizes);
        let downloads = Downloads::new(sizes, servers, self.seed, &flow.name);
        let config = |service| ChannelConfig { downloads: downloads.clone(), addresses, service };
        let (seed, name) = (self.seed, &flow.name);
        let client_times = ServiceTimes::of_client(channel.client_jitter_ns, seed, name);
        let server_times = ServiceTimes::of_server(channel.server_jitter_ns, seed, name);
        let (client_config, server_config) = (config(client_times), config(server_times));
        let end = Instant::from_nanos(self.plan.stop_ns);
        let schedule = ChannelSchedule { start, end, count: channel.connections };
        let [server, client] = self.tcp_hosts(flow, id, [&channel.server, &channel.client]);
        let listed = channel.servers.as_slice().into();
        let client = ChannelClient::new(client, client_config, listed, schedule);
        [ChannelServer::new(server, server_config).into(), client.into()]
    }

    /// The table of these sizes. The channels of an entry share one.
    fn size_table(&mut self, sizes: &'a [(u64, u64)]) -> SizeTable {
        match &self.size_table {
            Some((of_table, table)) if *of_table == sizes => table.clone(),
            _ => {
                let table = SizeTable::new(sizes);
                self.size_table = Some((sizes, table.clone()));
                table
            }
        }
    }

    /// Adds the stations of a channel's addresses: those of its servers, then those of its client.
    pub(super) fn add_server_stations(
        &mut self,
        flow: &Flow,
        channel: &DownloadChannel,
        [server, client]: [NodeId; 2],
    ) {
        let port = (server, NET);
        let of_server =
            |&host: &u32| Station { port, gateway: HUB, host: Some(host), from_host: None };
        self.server_stations.extend(channel.servers.iter().map(of_server));
        let of_client = self.station(flow, Heading::Return, client);
        let from = |&host: &u32| Station { from_host: Some(host), ..of_client };
        self.server_stations.extend(channel.servers.iter().map(from));
        self.channel_servers.push(server);
    }
}
