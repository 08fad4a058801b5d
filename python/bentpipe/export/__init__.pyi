from .ns3 import ns3_script as ns3_script
from .sat_toml import sat_toml as sat_toml
from .tc import tc_script as tc_script
