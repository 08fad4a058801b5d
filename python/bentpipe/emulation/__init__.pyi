from .run import emulate_partly as emulate_partly
from .run import prepare as prepare
